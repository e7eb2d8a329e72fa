"""The plan of a local cluster: each process finds its settings in the cluster file."""

from pathlib import Path
from typing import TypeVar

import pytest
from pydantic_settings import BaseSettings, CliApp

from foretell.config import (
    BatchSettings,
    Cluster,
    LauncherSettings,
    PredictorSettings,
    SchedulerSettings,
    TaggerSettings,
    parse_instances,
)
from foretell.config.layout import Layout
from foretell.config.marks import ClusterError
from foretell.services.process.frames import frames_address
from foretell.tools.local.options import UpFlags
from foretell.tools.local.plan import (
    ClusterPlan,
    Process,
    longest_socket_name,
    placed,
    plan_cluster,
)
from foretell.tools.local.up import CannotStart, wanted_cluster, with_secret

FLAGS = UpFlags(engines=3, schedulers=2, port=8000)
Settings = TypeVar("Settings", bound=BaseSettings)


def plan(run_dir: Path, flags: UpFlags = FLAGS, *, restart: bool = True) -> ClusterPlan:
    wanted = wanted_cluster("", flags)
    engines = len(wanted.engine_list())
    cluster = placed(wanted, run_dir, 8000, [21_000 + i for i in range(engines)])
    file = run_dir / "cluster.yaml"
    file.write_text(cluster.model_dump_json(exclude_unset=True))
    ports = [22_000 + i for i in range(cluster.schedulers.replicas)]
    return plan_cluster(cluster, file, run_dir, ports, restart=restart)


def settings(found: ClusterPlan, kind: str, settings_class: type[Settings]) -> list[Settings]:
    """The settings that processes of that kind read from their flags."""
    return [
        CliApp.run(settings_class, cli_args=flags(p)) for p in found.processes if p.kind == kind
    ]


def flags(process: Process) -> list[str]:
    return [argument for argument in process.program.argv if argument.startswith("--")]


def test_a_folder_in_a_cluster_file_is_beside_it(tmp_path: Path) -> None:
    text = "engines: [{kind: emulated}]\nrun_dir: run\n"
    (instance,) = parse_instances(text, tmp_path)
    assert instance["predictor"] == f"unix:{tmp_path}/run/engine-0.predictor.sock"


def test_schedulers_know_the_launched_engines(tmp_path: Path) -> None:
    found = plan(tmp_path)
    launchers = settings(found, "launcher", LauncherSettings)
    (scheduler, _) = settings(found, "scheduler", SchedulerSettings)
    file = Path(scheduler.instances)
    instances = parse_instances(file.read_text(), file.parent)
    assert [i["instance_id"] for i in instances] == [s.name for s in launchers]
    assert [i["url"] for i in instances] == [f"http://{s.host}:{s.port}" for s in launchers]
    assert [i["predictor"] for i in instances] == [s.predictor_listen for s in launchers]
    assert [s.port for s in launchers] == [21_000, 21_001, 21_002]
    assert all(s.restart and s.run_dir == str(tmp_path) for s in launchers)
    assert not any(
        s.restart for s in settings(plan(tmp_path, restart=False), "launcher", LauncherSettings)
    )


def test_schedulers_share_a_port_and_know_the_tagger(tmp_path: Path) -> None:
    found = plan(tmp_path, UpFlags(policy="round_robin", host="0.0.0.0"))
    (tagger,) = settings(found, "tagger", TaggerSettings)
    replicas = settings(found, "scheduler", SchedulerSettings)
    assert {r.shared_port for r in replicas} == {8000}
    assert [r.port for r in replicas] == [22_000, 22_001]
    assert [r.name for r in replicas] == ["scheduler-0", "scheduler-1"]
    assert {r.tagger for r in replicas} == {tagger.listen}
    assert {r.policy for r in replicas} == {"round_robin"}
    assert {r.host for r in replicas} == {"0.0.0.0"}
    assert found.endpoint == "http://127.0.0.1:8000", "an address that a client can call"


def test_emulated_engines_take_the_users_flags(tmp_path: Path) -> None:
    given = UpFlags(engines=3, engine_args="--speedup 10", model="my-model", profile="A30/Qwen2-7B")
    launchers = settings(plan(tmp_path, given), "launcher", LauncherSettings)
    assert {s.engine_args for s in launchers} == {"--speedup 10"}
    assert {s.served_model_name for s in launchers} == {"my-model"}
    assert {s.profile for s in launchers} == {"A30/Qwen2-7B"}


def test_vllm_gets_the_model_and_its_python(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    python = tmp_path / "python"
    python.touch()
    given = UpFlags(engines=1, engine="vllm", model=str(tmp_path / "model"), python=str(python))
    (found,) = settings(plan(tmp_path, given), "launcher", LauncherSettings)
    assert (found.engine, found.model) == ("vllm", str(tmp_path / "model"))
    assert (found.python, found.engine_args) == (str(python), "")


def test_a_cluster_file_is_run_with_ports_that_are_free(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("engines: [{kind: emulated, engines: 2}, {kind: emulated, port: 9000}]\n")
    cluster = placed(wanted_cluster(str(file), UpFlags()), tmp_path, 8000, [21_000, 21_001, 21_002])
    assert [engine.port for engine in cluster.engine_list()] == [21_000, 21_001, 9000]
    with pytest.raises(CannotStart, match="--engine-args does not go with --cluster"):
        wanted_cluster(str(file), UpFlags(engine_args="--speedup 2"))
    assert wanted_cluster(str(file), UpFlags(policy="round_robin")).policy.name == "round_robin"


@pytest.mark.parametrize(
    ("host", "endpoint"), [("::", "http://[::1]:8000"), ("h", "http://h:8000")]
)
def test_endpoint_is_an_address_clients_can_use(tmp_path: Path, host: str, endpoint: str) -> None:
    assert plan(tmp_path, UpFlags(host=host)).endpoint == endpoint


@pytest.mark.parametrize("more", [{}, {"kind": "vllm", "ranks": 2}])
def test_no_socket_has_a_longer_name_than_told(tmp_path: Path, more: dict[str, object]) -> None:
    engines = {"kind": "emulated", "engines": 12} | more
    models = {"m": {"path": "/m"}} if more else {}
    cluster = Cluster.model_validate({"engines": [engines], "models": models})
    sockets = placed(cluster, tmp_path, 8000, range(12))
    predictors = [each["predictor"] for each in Layout(sockets).instances()]
    names = [frames_address(each).removeprefix(f"unix:{tmp_path}/") for each in predictors]
    assert len(longest_socket_name(cluster)) == max(map(len, names))


def test_the_sidecar_gets_what_the_file_says_of_sidecars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("engines: [{kind: emulated}]\nobservability: {log_level: warning}\n")
    found = PredictorSettings(cluster=str(file))
    assert (found.name, found.log_level) == ("engine-0", "warning")
    monkeypatch.setenv("FORETELL_PREDICTOR_LOG_LEVEL", "error")
    assert PredictorSettings(cluster=str(file)).log_level == "error"
    assert (
        CliApp.run(PredictorSettings, cli_args=[f"--cluster={file}", "--log-level=debug"]).log_level
        == "debug"
    )


def test_an_envoy_takes_the_port_and_asks_the_schedulers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foretell.tools.envoy.program", lambda: "/bin/envoy")
    found = plan(tmp_path, UpFlags(engines=2, envoy=True))
    (front,) = [process for process in found.processes if process.kind == "envoy"]
    assert front.address == found.endpoint == "http://127.0.0.1:8000"
    assert "/bin/envoy" in front.program.argv
    config = (tmp_path / "envoy.yaml").read_text()
    for scheduler in settings(found, "scheduler", SchedulerSettings):
        assert scheduler.shared_port == 0
        assert scheduler.picker.removeprefix("unix:") in config
    assert not any(process.kind == "envoy" for process in plan(tmp_path).processes)


def test_what_is_served_without_tls_stays_on_the_loopback(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    tls = "https_port: 8443, https_certificate: cert.pem, https_key: key.pem"
    file.write_text(
        "engines: [{kind: emulated}]\nbatches: {folder: kept}\n"
        f"schedulers: {{listen: 0.0.0.0, {tls}}}\n"
    )
    cluster = placed(wanted_cluster(str(file), UpFlags()), tmp_path, 8000, [21_000])
    (tmp_path / "cluster.yaml").write_text(cluster.model_dump_json(exclude_unset=True))
    found = plan_cluster(cluster, tmp_path / "cluster.yaml", tmp_path, [1, 2], restart=True)
    for scheduler in settings(found, "scheduler", SchedulerSettings):
        assert (scheduler.host, scheduler.shared_port) == ("127.0.0.1", 8000)
        assert scheduler.https_listen == "0.0.0.0:8443"
        assert scheduler.https_certificate == str(tmp_path / "cert.pem")
    (batch,) = settings(found, "batch", BatchSettings)
    assert batch.schedulers == found.endpoint == "http://127.0.0.1:8000"
    file.write_text(f"engines: 1\nschedulers: {{envoy: true, {tls}}}\n")
    with pytest.raises(ClusterError, match=r"schedulers\.https_port: an Envoy serves no TLS"):
        wanted_cluster(str(file), UpFlags())
    file.write_text("engines: 1\nschedulers: {https_port: 8443}\n")
    with pytest.raises(ClusterError, match="TLS needs https_certificate and https_key"):
        wanted_cluster(str(file), UpFlags())


def test_batches_are_served_where_the_file_has_a_folder_for_them(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("engines: [{kind: emulated}]\nbatches: {folder: kept}\n")
    wanted = wanted_cluster(str(file), UpFlags())
    cluster = with_secret(placed(wanted, tmp_path, 8000, [21_000]), tmp_path)
    (tmp_path / "cluster.yaml").write_text(cluster.model_dump_json(exclude_unset=True))
    found = plan_cluster(cluster, tmp_path / "cluster.yaml", tmp_path, [1, 2], restart=True)
    (batch,) = settings(found, "batch", BatchSettings)
    assert (batch.folder, batch.schedulers) == (str(tmp_path / "kept"), "http://127.0.0.1:8000")
    secrets = {batch.secret.get_secret_value()}
    for scheduler in settings(found, "scheduler", SchedulerSettings):
        assert scheduler.batches == batch.listen
        secrets.add(scheduler.secret.get_secret_value())
    assert len(secrets) == 1
    assert len(secrets.pop()) == 64
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    assert not any(process.kind == "batch" for process in plan(tmp_path).processes)
