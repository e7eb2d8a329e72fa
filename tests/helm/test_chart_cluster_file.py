"""The Helm chart's cluster file: valid, and consistent with pods and Services."""

import shlex
from pathlib import Path
from typing import Any

import pytest
from chart_objects import (
    cluster_file,
    container_of,
    containers,
    each_set,
    engines_of,
    env_of,
    of_kind,
    pods_of,
    values_of,
)

from foretell.config import (
    BatchSettings,
    EmulatorSettings,
    Layout,
    PredictorSettings,
    ProvisionerSettings,
    SchedulerSettings,
    TaggerSettings,
    load_cluster,
)
from foretell.config.instances import parse_members
from foretell.config.layout import engine_args, engine_profile

OF_NODES = ("--distributed-executor-backend", "--nnodes", "--node-rank", "--master-addr")


@each_set
def test_addresses_of_the_cluster_file_are_those_of_services(name: str, tmp_path: Path) -> None:
    layout = Layout(load_cluster(cluster_file(name, tmp_path)))
    services = of_kind(name, "Service")

    def port_of(service: str, port: str) -> int:
        (found,) = (p for p in services[service]["spec"]["ports"] if p["name"] == port)
        return int(found["port"])

    found = {each["instance_id"]: each for each in layout.instances()}
    for key, each in engines_of(name).items():
        assert each["kind"] == "LeaderWorkerSet" or each["spec"]["serviceName"] == key
        mine = {pod: at for pod, at in found.items() if pod.rpartition("-")[0] == key}
        assert len(mine) >= each["spec"].get("replicas", 1)
        assert sorted(mine) == sorted(f"{key}-{ordinal}" for ordinal in range(len(mine)))
        for pod, at in mine.items():
            assert at["url"] == f"http://{pod}.{key}:{port_of(key, 'http')}"
            assert at["predictor"] == f"{pod}.{key}:{port_of(key, 'grpc')}"
            assert port_of(key, "frames") == port_of(key, "grpc") + 1000
    assert len(found) == sum(pod.rpartition("-")[0] in engines_of(name) for pod in found)
    if "demo-foretell-tagger" in services:
        address = f"demo-foretell-tagger:{port_of('demo-foretell-tagger', 'grpc')}"
        assert layout.tagger_address() == address


@each_set
def test_processes_take_their_settings(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes get them as in pods: from variables, the cluster file and mounted files."""
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    file = cluster_file(name, tmp_path)
    file.write_text(file.read_text().replace("/etc/foretell/secrets", str(secrets)))
    layout = Layout(load_cluster(file))
    for pod_name, pod in pods_of(name).items():
        for volume in pod["spec"].get("volumes", []):
            for source in volume.get("projected", {}).get("sources", []):
                for item in source.get("secret", {}).get("items", []):
                    (secrets / item["path"]).write_text("0123456789abcdef\n")
        for container in containers(pod):
            service = container.get("command", ["", "", ""])[2].removeprefix("foretell.services.")
            settings_class: Any = {
                "scheduler": SchedulerSettings,
                "predictor": PredictorSettings,
                "tagger": TaggerSettings,
                "batch": BatchSettings,
                "provisioner": ProvisionerSettings,
                "backend.emulator": EmulatorSettings,
            }.get(service)
            if settings_class is None:
                continue
            with monkeypatch.context() as patched:
                for key, value in env_of(container, f"{pod_name}-0").items():
                    path = str(file) if key.endswith("_CLUSTER") else value
                    patched.setenv(key, path.replace("/etc/foretell/secrets", str(secrets)))
                settings = settings_class()
            if service in ("predictor", "backend.emulator"):
                engine = layout.engine(f"{pod_name}-0")
                assert settings.name == engine.name
                assert settings.snapshot_endpoint == layout.snapshot_endpoint(engine)
            if service != "backend.emulator":
                assert settings.secret.get_secret_value() == "0123456789abcdef"
            if service == "scheduler":
                assert settings.name == "scheduler-0"
                assert bool(settings.api_keys.get_secret_value()) == (
                    "apiKeys" in values_of(name).get("secrets", {})
                )
            if service == "provisioner":
                assert len(settings.schedulers.split(",")) == layout.cluster.schedulers.replicas
                if settings.driver == "kubernetes":
                    places = parse_members(settings.instances).instances
                    listed = [each.instance_id for each in places]
                    assert listed == [each["instance_id"] for each in layout.instances()]
                    assert settings.maximum == len(listed)


@each_set
def test_engines_are_started_with_the_flags_of_the_cluster_file(name: str, tmp_path: Path) -> None:
    layout = Layout(load_cluster(cluster_file(name, tmp_path)))
    for key in engines_of(name):
        engine = layout.engine(f"{key}-0")
        container = container_of(pods_of(name)[key], "engine")
        if engine.section.kind == "emulated":
            assert engine_profile(engine)
            continue
        path, flag, served, *rest = container["args"]
        assert (path, flag) == (engine.model.path or engine.model_name, "--served-model-name")
        assert served == engine.model_name
        several = engines_of(name)[key]["kind"] == "LeaderWorkerSet"
        nodes = [arg for arg in rest if arg.partition("=")[0] in OF_NODES] if several else []
        assert [arg for arg in rest if arg not in nodes] == engine_args(engine), shlex.join(rest)
        if several:
            worker = container_of(pods_of(name)[f"{key}-worker"], "engine")
            assert "--node-rank=0" in nodes
            assert {*worker["args"]} - {*container["args"]} == {
                *("--headless", "--node-rank=$(LWS_WORKER_INDEX)")
            }
        resources = container["resources"]
        gpus = {r: n for r, n in resources["limits"].items() if r.endswith("/gpu")}
        assert list(gpus.values()) == [str(engine.section.gpus)]
        assert gpus.items() <= resources["requests"].items()
        env = env_of(container, f"{key}-0")
        assert env["FORETELL_PLUGIN_SNAPSHOT_ENDPOINT"] == layout.snapshot_endpoint(engine)


@each_set
def test_engine_and_predictor_share_a_folder_in_memory(name: str) -> None:
    for key in engines_of(name):
        pod = pods_of(name)[key]
        (run,) = (each for each in pod["spec"]["volumes"] if each["name"] == "run")
        assert run["emptyDir"]["medium"] == "Memory"
        for which in ("engine", "predictor"):
            mounts = container_of(pod, which)["volumeMounts"]
            assert {"name": "run", "mountPath": "/run/foretell"} in mounts
        # A sidecar container: starts before the engine and ends after it.
        assert container_of(pod, "predictor")["restartPolicy"] == "Always"
