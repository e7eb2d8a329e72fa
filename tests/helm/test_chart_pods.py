"""The pods of the Helm chart, and the Services and probes around them."""

from pathlib import Path

from chart_objects import (
    cluster_file,
    container_of,
    containers,
    each_set,
    engines_of,
    of_kind,
    parsed,
    pods_of,
    render,
    values_of,
)

from foretell.config import load_cluster

RESTRICTED_VOLUMES = {"configMap", "downwardAPI", "emptyDir", "persistentVolumeClaim", "projected"}


@each_set
def test_pods_are_restricted_and_reserve_what_they_need(name: str) -> None:
    for pod in pods_of(name).values():
        spec = pod["spec"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert spec["automountServiceAccountToken"] is False
        whole = spec["securityContext"]
        assert whole["runAsNonRoot"]
        assert whole["runAsUser"] == 10001
        assert whole["seccompProfile"] == {"type": "RuntimeDefault"}
        for volume in spec.get("volumes", []):
            assert volume.keys() - {"name"} <= RESTRICTED_VOLUMES
        for container in containers(pod):
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False
            assert own["readOnlyRootFilesystem"] is True
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["requests"].keys() >= {"cpu", "memory"}


@each_set
def test_secrets_are_only_referred_to(name: str) -> None:
    assert not of_kind(name, "Secret")


@each_set
def test_every_mount_has_a_volume_and_every_account_is_there(name: str) -> None:
    accounts = of_kind(name, "ServiceAccount")
    for workload, pod in pods_of(name).items():
        owner = of_kind(name, "StatefulSet", "Deployment").get(workload, {"spec": {}})["spec"]
        if group := of_kind(name, "LeaderWorkerSet").get(workload.removesuffix("-worker")):
            owner = group["spec"]["leaderWorkerTemplate"]
        claims = [each["metadata"]["name"] for each in owner.get("volumeClaimTemplates", [])]
        volumes = {each["name"] for each in pod["spec"].get("volumes", [])} | set(claims)
        mounted = {m["name"] for c in containers(pod) for m in c.get("volumeMounts", [])}
        assert mounted == volumes
        if "serviceAccountName" in pod["spec"]:
            account = accounts[pod["spec"]["serviceAccountName"]]
            assert account["automountServiceAccountToken"] is False


@each_set
def test_services_probes_and_selectors_find_their_ports_and_pods(name: str) -> None:
    pods = list(pods_of(name).values())
    for service in of_kind(name, "Service").values():
        wanted = service["spec"]["selector"].items()
        found = [pod for pod in pods if wanted <= pod["metadata"]["labels"].items()]
        assert found
        for pod in found:
            ports = {p["name"] for c in containers(pod) for p in c.get("ports", [])}
            assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for pod in pods:
        for container in containers(pod):
            ports = {port["name"] for port in container.get("ports", [])}
            for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                probe = container.get(kind, {})
                at = probe.get("httpGet") or probe.get("tcpSocket")
                assert at is None or at["port"] in ports
    for kind in ("PodDisruptionBudget", "PodMonitor", "InferencePool"):
        for each in of_kind(name, kind).values():
            wanted = each["spec"]["selector"]["matchLabels"].items()
            assert any(wanted <= pod["metadata"]["labels"].items() for pod in pods)


@each_set
def test_grace_periods_fit_the_longest_stream(name: str, tmp_path: Path) -> None:
    drain_s = load_cluster(cluster_file(name, tmp_path)).schedulers.drain_timeout_s
    pod = pods_of(name)["demo-foretell-scheduler"]
    pause_s = container_of(pod, "scheduler")["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pause_s == values_of(name).get("schedulers", {}).get("endpointRemovalSeconds", 10)
    assert pod["spec"]["terminationGracePeriodSeconds"] >= pause_s + drain_s + 2
    for each in engines_of(name):
        grace_s = pods_of(name)[each]["spec"]["terminationGracePeriodSeconds"]
        for arg in container_of(pods_of(name)[each], "engine").get("args", []):
            if arg.startswith("--shutdown-timeout="):
                assert drain_s <= int(arg.partition("=")[2]) < grace_s


def test_only_who_reads_a_setting_is_started_anew_when_it_changes() -> None:
    def annotations(**cluster: object) -> dict[str, str]:
        return {
            each["metadata"]["name"]: each["spec"]["template"]["metadata"]["annotations"][
                "checksum/settings"
            ]
            for each in parsed(render({"cluster": cluster}))
            if each["kind"] in ("StatefulSet", "Deployment")
        }

    def changed(**cluster: object) -> set[str]:
        before, after = annotations(), annotations(**cluster)
        return {name.rpartition("-")[2] for name in before if before[name] != after[name]}

    # Other pods must not restart: engines would load their weights again.
    assert changed(policy={"parameters": {"tolerance": 0.1}}) == {"scheduler"}
    assert changed(tagger={"threads": 2}) == {"scheduler", "tagger"}
    assert changed(observability={"log_level": "debug"}) == {"scheduler", "tagger", "8b"}
