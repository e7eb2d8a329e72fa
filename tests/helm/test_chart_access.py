"""Access in the Helm chart's release: network policies and permissions; and its monitoring."""

import json
from typing import Any

import pytest
import yaml
from chart_objects import (
    CHART,
    HERE,
    container_of,
    containers,
    each_set,
    of_kind,
    pods_of,
    values_of,
)

from foretell.config.instances import parse_members
from foretell.discovery import FoundEndpoints, of_pod
from foretell.services.scheduler.discovery import is_discovered


@each_set
def test_only_who_needs_them_may_speak_to_pods(name: str) -> None:
    policies = of_kind(name, "NetworkPolicy")
    if not values_of(name).get("networkPolicies", {}).get("enabled", True):
        assert not policies
        return
    pods = {k: p for k, p in pods_of(name).items() if k != "app.kubernetes.io/component"}
    component = "app.kubernetes.io/component"

    def callers(of: str, port: str) -> set[str]:
        policy = policies[f"demo-foretell-{of}"]["spec"]
        found: set[str] = set()
        for rule in policy["ingress"]:
            if port in {each["port"] for each in rule.get("ports", [])}:
                assert rule["from"], "an empty list is everybody"
                for peer in rule["from"]:
                    labels = peer.get("podSelector", {}).get("matchLabels", {})
                    found.add(labels.get(component, "others"))
        return found

    covered = {each["spec"]["podSelector"]["matchLabels"][component] for each in policies.values()}
    components = {pod["metadata"]["labels"][component] for pod in pods.values()} - {"check"}
    assert components == covered
    assert callers("engine", "grpc") == callers("engine", "frames") == {"scheduler", "provisioner"}
    if "tagger" in components:
        assert callers("tagger", "grpc") == {"scheduler"}
    if "batch" in components:
        assert callers("batch", "http") == {"scheduler", "provisioner"}
    for policy in policies.values():
        for rule in policy["spec"]["ingress"]:
            if "ports" not in rule:  # between the nodes of one engine
                peers = [each["podSelector"]["matchLabels"][component] for each in rule["from"]]
                assert peers == ["engine", "engine-worker"]
                assert policy["metadata"]["name"].startswith("demo-foretell-engine")
    gateway = values_of(name).get("gateway", {}).get("inferencePool", False)
    assert callers("scheduler", "picker") == ({"others"} if gateway else set())


@each_set
def test_only_who_needs_the_api_server_may_speak_to_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Schedulers discover pods, unless a provisioner scales and lists the engines for them."""
    model = values_of(name).get("models", [{}])[0]
    by = model.get("autoscaling", {}).get("by")
    decides = by in ("provisioner", "keda")
    finds = by != "provisioner"
    owners = ["demo-foretell-provisioner"] * decides + ["demo-foretell-scheduler"] * finds
    assert not of_kind(name, "ClusterRole", "ClusterRoleBinding")
    tokens = [
        key
        for key, pod in pods_of(name).items()
        for volume in pod["spec"].get("volumes", [])
        for source in volume.get("projected", {}).get("sources", [])
        if "serviceAccountToken" in source
    ]
    assert tokens == owners
    roles, bindings = of_kind(name, "Role"), of_kind(name, "RoleBinding")
    assert [*roles] == [*bindings] == owners
    for owner, binding in bindings.items():
        assert binding["roleRef"]["name"] == binding["subjects"][0]["name"] == owner
    if finds:
        rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
        assert roles["demo-foretell-scheduler"]["rules"] == [rule]
    if not decides:
        return
    lease = of_kind(name, "Lease")["demo-foretell-provisioner"]
    assert "spec" not in lease, "an upgrade would take it from its holder"
    monkeypatch.syspath_prepend(HERE.parent / "contract")
    from fake_kubernetes import RULES  # noqa: PLC0415

    text = json.dumps(roles["demo-foretell-provisioner"]["rules"])
    text = text.replace("demo-foretell-qwen", "vllm").replace("demo-foretell-prov", "vllm-prov")
    allowed = RULES if by == "provisioner" else RULES[-1:]
    assert json.loads(text) == allowed, "tests of the driver allow something else"


@each_set
def test_schedulers_find_the_pods_of_all_engines_and_no_others(name: str) -> None:
    container = container_of(pods_of(name)["demo-foretell-scheduler"], "scheduler")
    env = {each["name"]: each.get("value") for each in container["env"]}
    source = env["FORETELL_SCHEDULER_INSTANCES"]
    if source.startswith("/"):
        return  # the provisioner's list
    assert is_discovered(source)
    selector = dict(each.split("=") for each in source.partition(":")[2].split(","))
    found = {
        key: of_pod(_running(pod), FoundEndpoints())
        for key, pod in pods_of(name).items()
        if selector.items() <= pod["metadata"]["labels"].items()
    }
    models = values_of(name).get("models", [{"name": "qwen3-8b", "model": "Qwen/Qwen3-8B"}])
    assert found.keys() == {f"demo-foretell-{model['name']}" for model in models}
    for model in models:
        told = found[f"demo-foretell-{model['name']}"]
        assert told.models == (model["model"], *sorted(model.get("adapters", ())))
        (endpoint,) = told.endpoints
        assert (endpoint.url, endpoint.predictor) == ("http://10.0.0.1:8000", "10.0.0.1:50051")
        assert endpoint.model == model["model"]


def _running(pod: dict[str, Any]) -> dict[str, Any]:
    status = {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    return {**pod, "metadata": {"name": "pod-0", **pod["metadata"]}, "status": status}


def test_instances_that_a_provisioner_writes_begin_as_a_list_of_none() -> None:
    (text,) = of_kind("provisioner", "ConfigMap")["demo-foretell-qwen-instances"]["data"].values()
    members = parse_members(text)
    assert members.instances == ()
    assert members.models == ("Qwen/Qwen3-8B",)


def test_alerts_and_dashboards_are_those_that_ship() -> None:
    (rule,) = of_kind("watched", "PrometheusRule").values()
    shipped = (CHART / "observability/rules.yml").read_text()
    moved = shipped.replace("docs/runbook.md", "https://example.org/runbook.md")
    assert rule["spec"] == yaml.safe_load(moved)
    files = {path.name: path for path in (CHART / "observability/dashboards").glob("*.json")}
    found: dict[str, str] = {}
    for each in of_kind("watched", "ConfigMap").values():
        if each["metadata"]["labels"].get("grafana_dashboard") == "1":
            found |= each["data"]
    assert found.keys() == files.keys()
    for name, text in found.items():
        assert json.loads(text) == json.loads(files[name].read_text())


def test_monitors_reach_every_process_by_a_port_that_it_has() -> None:
    pods = pods_of("watched").values()
    jobs = set()
    for each in of_kind("watched", "PodMonitor").values():
        wanted = each["spec"]["selector"]["matchLabels"].items()
        (endpoint,) = each["spec"]["podMetricsEndpoints"]
        jobs.add(endpoint["relabelings"][0]["replacement"])
        for pod in pods:
            if wanted <= pod["metadata"]["labels"].items():
                ports = [p["name"] for c in containers(pod) for p in c.get("ports", [])]
                assert ports.count(endpoint["port"]) == 1
    assert jobs == {"scheduler", "predictor", "engine", "tagger", "batch"}


def test_a_gateway_asks_our_picker_and_fails_closed() -> None:
    (pool,) = of_kind("gateway", "InferencePool").values()
    (route,) = of_kind("gateway", "HTTPRoute").values()
    picker = pool["spec"]["endpointPickerRef"]
    service = of_kind("gateway", "Service")[picker["name"]]
    assert [port["port"] for port in service["spec"]["ports"]] == [picker["port"]["number"]]
    assert picker["failureMode"] == "FailClose"
    (backend,) = route["spec"]["rules"][0]["backendRefs"]
    assert (backend["kind"], backend["name"]) == ("InferencePool", pool["metadata"]["name"])
    # Files and batches go to schedulers, not to engines.
    first = of_kind("batch", "HTTPRoute")["demo-foretell"]["spec"]["rules"][0]
    assert first["backendRefs"] == [{"name": "demo-foretell-scheduler", "port": 8000}]
