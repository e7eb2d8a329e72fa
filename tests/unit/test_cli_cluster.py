"""The plan of a local cluster: every flag in it is understood by the service that gets it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic_settings import CliApp

from foretell.config import LauncherSettings, SchedulerSettings, TaggerSettings
from tools.local.cluster import (
    ClusterOptions,
    ClusterPlan,
    Process,
    longest_socket_name,
    plan_cluster,
)

RUN_DIR = Path("/run/foretell")
OPTIONS = ClusterOptions(engines=3, schedulers=2, port=8000)


def plan(options: ClusterOptions = OPTIONS) -> ClusterPlan:
    ports = [21_000 + i for i in range(options.engines + options.schedulers)]
    return plan_cluster(options, RUN_DIR, RUN_DIR, ports)


def of_kind(found: ClusterPlan, kind: str) -> list[Process]:
    return [process for process in found.processes if process.kind == kind]


def flags(process: Process) -> list[str]:
    return [argument for argument in process.argv if argument.startswith("--")]


def launcher(process: Process) -> LauncherSettings:
    return CliApp.run(LauncherSettings, cli_args=flags(process))


def test_instances_are_the_launched_engines() -> None:
    found = plan()
    settings = [launcher(process) for process in of_kind(found, "launcher")]
    assert [i["instance_id"] for i in found.instances] == [s.name for s in settings]
    assert [i["url"] for i in found.instances] == [f"http://{s.host}:{s.port}" for s in settings]
    assert [i["predictor"] for i in found.instances] == [s.predictor_listen for s in settings]
    assert len({s.port for s in settings}) == 3
    assert all(s.run_dir == str(RUN_DIR) for s in settings)


def test_schedulers_share_a_port_and_know_the_tagger_and_the_engines(tmp_path: Path) -> None:
    found = plan(replace(OPTIONS, policy="round_robin", host="0.0.0.0"))
    tagger = CliApp.run(TaggerSettings, cli_args=flags(of_kind(found, "tagger")[0]))
    replicas = [CliApp.run(SchedulerSettings, cli_args=flags(p)) for p in found.schedulers()]
    assert {r.shared_port for r in replicas} == {8000}
    assert len({r.port for r in replicas}) == len({r.name for r in replicas}) == 2
    assert {r.tagger for r in replicas} == {tagger.listen}
    assert {r.policy for r in replicas} == {"round_robin"}
    assert {r.host for r in replicas} == {"0.0.0.0"}
    assert found.endpoint == "http://127.0.0.1:8000", "an address that a client can call"
    assert {r.instances for r in replicas} == {str(RUN_DIR / "instances.json")}
    found.write_instances(tmp_path)
    assert json.loads((tmp_path / "instances.json").read_text()) == list(found.instances)


def test_emulated_engines_differ_in_seed_and_take_the_users_flags() -> None:
    options = replace(OPTIONS, engine_args="--speedup 10", model="my-model", profile="A30/Qwen2-7B")
    settings = [launcher(p) for p in of_kind(plan(options), "launcher")]
    assert [s.engine_args for s in settings] == [f"--seed {i} --speedup 10" for i in range(3)]
    assert {s.served_model_name for s in settings} == {"my-model"}
    assert {s.profile for s in settings} == {"A30/Qwen2-7B"}


def test_vllm_gets_the_model_and_its_python() -> None:
    options = replace(OPTIONS, engine="vllm", model="/models/m", python="/env/bin/python")
    settings = launcher(of_kind(plan(options), "launcher")[0])
    assert (settings.engine, settings.model, settings.python) == (
        "vllm",
        "/models/m",
        "/env/bin/python",
    )
    assert settings.engine_args == ""


@pytest.mark.parametrize(
    ("host", "endpoint"), [("::", "http://[::1]:8000"), ("h", "http://h:8000")]
)
def test_endpoint_is_an_address_clients_can_use(host: str, endpoint: str) -> None:
    assert plan(replace(OPTIONS, host=host)).endpoint == endpoint


def test_no_socket_has_a_longer_name_than_told() -> None:
    options = replace(OPTIONS, engines=12)
    names = [Path(i["predictor"]).name for i in plan(options).instances]
    assert max(map(len, names)) <= len(longest_socket_name(options))
