"""The cluster file: allowed fields, derived settings, and how mistakes are reported."""

import json
from pathlib import Path
from textwrap import dedent

import pytest

from foretell.config import (
    Cluster,
    ClusterError,
    Layout,
    PredictorSettings,
    SchedulerSettings,
    load_cluster,
)
from foretell.config.cluster import parse_cluster
from foretell.config.instances import parse_members
from foretell.config.layout import values_from

TWO_HOSTS = """
models: {small: {path: org/small}}
engines:
  - {host: gpu-a, engines: 2}
  - {host: gpu-b, gpus: 2}
  - {host: gpu-b, name: last, kind: emulated}
traffic: {secret_file: /run/secret}
"""


def cluster(text: str) -> Cluster:
    return parse_cluster(dedent(text), "cluster.yaml")


def problems(text: str) -> list[str]:
    with pytest.raises(ClusterError) as caught:
        cluster(text)
    return str(caught.value).splitlines()


def test_a_number_is_so_many_engines_alike_on_one_host() -> None:
    engines = cluster("models: {m: {}}\nengines: 8").engine_list()
    assert [engine.name for engine in engines] == [f"engine-{i}" for i in range(8)]
    assert [engine.gpus for engine in engines] == [(i,) for i in range(8)]
    assert [engine.port for engine in engines] == list(range(8100, 8108))


def test_a_new_engine_is_one_line() -> None:
    before = "engines:\n- {kind: emulated, name: left}\n"
    after = before + "- {kind: emulated, name: right}\n"
    assert [i["instance_id"] for i in Layout(cluster(before)).instances()] == ["left"]
    assert [i["instance_id"] for i in Layout(cluster(after)).instances()] == ["left", "right"]
    assert len({i["url"] for i in Layout(cluster(after)).instances()}) == 2


def test_ports_and_gpus_are_counted_on_each_host() -> None:
    engines = cluster(TWO_HOSTS).engine_list()
    assert [(e.name, e.host, e.port, e.predictor_port, e.gpus) for e in engines] == [
        ("engine-0", "gpu-a", 8100, 8200, (0,)),
        ("engine-1", "gpu-a", 8101, 8201, (1,)),
        ("engine-2", "gpu-b", 8100, 8200, (0, 1)),
        ("last", "gpu-b", 8101, 8201, ()),
    ]
    assert {engine.model_name for engine in engines} == {"small"}


def test_on_one_host_calls_pass_through_unix_sockets() -> None:
    layout = Layout(cluster("engines: [{kind: emulated}]\nrun_dir: /run/here"))
    (instance,) = layout.instances()
    assert instance["predictor"] == "unix:/run/here/engine-0.predictor.sock"
    assert layout.values("predictor", "")["listen"] == instance["predictor"]
    assert layout.values("tagger", "")["listen"] == layout.values("scheduler", "")["tagger"]
    assert not layout.several_hosts


def test_across_hosts_each_process_listens_where_the_others_call() -> None:
    layout = Layout(cluster(TWO_HOSTS))
    scheduler = layout.values("scheduler", "scheduler-1")
    for instance in json.loads(scheduler["instances"]):
        name = instance["instance_id"]
        launcher = layout.values("launcher", name)
        assert instance["url"] == f"http://{launcher['host']}:{launcher['port']}"
        assert instance["predictor"] == launcher["predictor_listen"]
        assert instance["predictor"] == layout.values("predictor", name)["listen"]
    assert scheduler["tagger"] == layout.values("tagger", "")["listen"] == "gpu-a:8300"
    for service in ("scheduler", "tagger"):
        assert layout.values(service, "")["secret_file"] == "/run/secret"  # type: ignore[arg-type]


def test_engines_with_several_gpus_are_tensor_parallel() -> None:
    launcher = Layout(cluster(TWO_HOSTS)).values("launcher", "engine-2")
    assert launcher["engine_args"] == "--tensor-parallel-size=2"
    assert (launcher["model"], launcher["served_model_name"]) == ("org/small", "small")


RANKS = "models: {m: {}}\nrun_dir: /run/here\nengines: [{ranks: 2, gpus: 2}, {engines: 1}]"


def test_each_data_parallel_rank_is_an_instance_with_a_predictor() -> None:
    layout = Layout(cluster(RANKS))
    first, second, other = layout.instances()
    assert [first["instance_id"], second["instance_id"]] == ["engine-0.rank0", "engine-0.rank1"]
    assert (first["rank"], second["rank"], other.get("rank")) == (0, 1, None)
    assert first["url"] == second["url"] != other["url"]
    launcher = layout.values("launcher", "engine-0")
    assert launcher["predictor_listen"] == f"{first['predictor']},{second['predictor']}"
    ranks = "--data-parallel-size=2 --data-parallel-size-local=2"
    assert launcher["engine_args"] == f"{ranks} --tensor-parallel-size=2"
    assert (launcher["ranks"], launcher["gpus"]) == (2, "0,1,2,3")
    assert parse_members(json.dumps(layout.instances())).instances[1].rank == 1


def test_each_node_has_some_of_a_deployment_s_ranks() -> None:
    flags = "--data-parallel-size 4 --data-parallel-hybrid-lb --data-parallel-start-rank"
    layout = Layout(
        cluster(
            "models: {m: {}}\ntraffic: {secret_file: /run/secret}\nengines:\n"
            f"- {{host: a, ranks: 2, args: {flags} 0}}\n"
            f"- {{host: b, ranks: 2, args: {flags} 2}}\n- {{host: b}}"
        )
    )
    found = [(each["url"], each.get("rank"), each["predictor"]) for each in layout.instances()]
    assert found == [
        ("http://a:8100", 0, "a:8200"),
        ("http://a:8100", 1, "a:8201"),
        ("http://b:8100", 0, "b:8200"),
        ("http://b:8100", 1, "b:8201"),
        ("http://b:8101", None, "b:8202"),
    ]
    args = str(layout.values("launcher", "engine-1")["engine_args"])
    assert args.startswith("--data-parallel-size=2 --data-parallel-size-local=2 ")
    assert args.endswith(f"{flags} 2")


@pytest.mark.parametrize(
    "text",
    [
        "engines: [{kind: emulated, ranks: 2}]",
        "models: {m: {}}\nengines: [{ranks: 2, offline: true}]",
        "models: {m: {}}\nengines: [{ranks: 2}]\nprovisioning: {enabled: true}",
        "models: {m: {}}\nengines: [{ranks: 2}]\nschedulers: {envoy: true}",
    ],
)
def test_where_ranks_cannot_be_that_is_said(text: str) -> None:
    assert any("ranks" in line for line in problems(text))


def test_in_containers_there_are_no_ranks_yet() -> None:
    with pytest.raises(ClusterError, match="outside containers"):
        Layout(cluster(RANKS), contained=True).instances()


STARTED_BY_OTHERS = """
engines:
  - {kind: sglang, url: "http://10.0.0.5:30000/", args: --max-running-requests 64}
  - {kind: openai, url: "https://other.example"}
"""


def test_an_engine_that_somebody_else_starts_is_at_its_url_and_observed() -> None:
    layout = Layout(cluster(STARTED_BY_OTHERS))
    first, _ = parse_members(json.dumps(layout.instances())).instances
    assert (first.url, first.kind) == ("http://10.0.0.5:30000", "sglang")
    values = layout.values("predictor", "engine-0")
    assert values["engine_url"] == first.url
    assert values["engine_args"] == "--max-running-requests 64"
    assert values["listen"] == first.predictor
    assert "snapshot_endpoint" not in values
    PredictorSettings(**values)
    with pytest.raises(ClusterError, match="outside containers"):
        Layout(cluster(STARTED_BY_OTHERS), contained=True).instances()


@pytest.mark.parametrize(
    "text",
    [
        "engines: [{kind: sglang}]",
        "engines: [{kind: emulated, url: 'http://a'}]",
        "engines: [{kind: openai, url: 'http://a', engines: 2}]",
        "engines: [{kind: openai, url: 'http://a', args: --max-num-seqs many}]",
        "engines: [{kind: openai, url: 'http://a'}]\nprovisioning: {enabled: true}",
    ],
)
def test_where_no_url_can_be_or_one_is_missing_that_is_said(text: str) -> None:
    assert any("url" in line or "max-num-seqs" in line for line in problems(text))


def test_engines_may_serve_offline_requests_beside_online_ones() -> None:
    launcher = Layout(cluster("models: {m: {}}\nengines: [{offline: true}]")).values("launcher", "")
    module, _, name = launcher["engine_args"].removeprefix("--scheduler-cls=").rpartition(".")
    source = Path(__file__).parents[2] / f"{module.replace('.', '/')}.py"
    assert f"class {name}(" in source.read_text()
    text = "engines: [{kind: emulated, offline: true}]"
    assert Layout(cluster(text)).values("launcher", "")["engine_args"] == "--offline=true"


def test_flags_of_a_model_and_of_engines_are_added_up() -> None:
    text = """
    models: {m: {args: --max-model-len 100}}
    engines: [{kind: emulated, args: "--speedup=2 --noise-ratio 0"}]
    """
    layout = Layout(cluster(text))
    assert (
        layout.values("launcher", "")["engine_args"]
        == "--max-model-len 100 --speedup=2 --noise-ratio 0"
    )
    emulator = layout.values("emulator", "")
    assert (emulator["max_model_len"], emulator["speedup"], emulator["noise_ratio"]) == (
        "100",
        "2",
        "0",
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("engins: 8", "line 1, column 1: engins: is not known here; did you mean engines?"),
        ("name: x", "line 1, column 1: engines: is missing"),
        ("engines: eight", "line 1, column 10: engines: Input should be a valid list"),
        ("engines: [{kind: vlm}]", "line 1, column 18: engines[0].kind: Input should be 'vllm'"),
        ("engines:\n- {knd: vllm}", "line 2, column 4: engines[0].knd: is not known here; did"),
        ("engines: 2", "line 1, column 10: engines[0]: vLLM needs a model: add a section like"),
        (
            "models: {a: {}, b: {}}\nengines: 2",
            "line 2, column 10: engines[0].model: say which section of `models` it serves: a, b",
        ),
        (
            "engines: [{kind: emulated, host: a}]\nschedulers: {host: b}\n"
            "provisioning: {enabled: true}",
            "line 3, column 25: provisioning.enabled: it starts engines on one host, not on 2",
        ),
        (
            "models: {a: {}}\nengines: [{model: b}]",
            "line 2, column 19: engines[0].model: no section of `models` has this name; there",
        ),
        (
            "engines: [{kind: emulated, profile: X/Y}]",
            "line 1, column 37: engines[0].profile: profile 'X/Y' is not known: it may be one of",
        ),
        (
            "engines: [{kind: emulated, profile: L4/Qwen2-7B}]",
            "line 1, column 37: engines[0].profile: an emulated engine needs a shipped profile",
        ),
        (
            "engines: [{kind: emulated, name: x}, {kind: emulated, name: x}]",
            "line 1, column 34: engines[0].name: two engines are called x",
        ),
        (
            "engines: [{kind: emulated, port: 9}, {kind: emulated, port: 9}]",
            "line 1, column 34: engines[0].port: two engines on this host have port 9",
        ),
        (
            "engines: [{kind: emulated, host: a}, {kind: emulated, host: b}, {kind: emulated}]",
            "line 1, column 65: engines[2].host: a cluster of several hosts needs the host",
        ),
        (
            "policy: {name: infaas}\nengines: 1",
            "line 1, column 16: policy.name: unknown policy 'inf",
        ),
        (
            "policy:\n  parameters: {tolerence: 1}\nengines: 1",
            "line 2, column 15: policy.parameters: policy 'slo' has no parameter 'tolerence'; it",
        ),
        (
            "policy:\n  parameters: {tolerance: much}\nengines: 1",
            "line 2, column 15: policy.parameters: tolerance: Input should be a valid number",
        ),
        ("engines: 1\nengines: 2", "line 2, column 1: engines: is given twice"),
        ("engines: [", "line 1, column 11: no valid YAML: "),
        ("- engines", "must hold sections such as `engines:`"),
    ],
)
def test_mistakes_are_told_with_line_column_and_field(text: str, problem: str) -> None:
    found = problems(text)
    assert any(f"cluster.yaml, {problem}" in line or f": {problem}" in line for line in found), (
        found
    )


def test_all_mistakes_are_told_at_once_and_no_value_that_may_be_secret() -> None:
    text = """
    engines: [{kind: emulated, gpus: 0}]
    schedulers:
      api_keys: s3cret
      port: s3cret
    """
    found = problems(text)
    assert len(found) == 3
    assert not [line for line in found if "s3cret" in line]
    assert any(
        "schedulers.api_keys: is not known here; did you mean api_keys_file?" in x for x in found
    )


def test_the_laboratorys_policies_have_names_of_their_own() -> None:
    text = "engines: [{kind: emulated}]\npolicy: {name: baselines.infaas}"
    assert cluster(text).policy.name == "baselines.infaas"


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("one\ntwo\n")
    (tmp_path / "model").mkdir()
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "models: {m: {path: model}}\nengines: 1\nschedulers: {api_keys_file: keys}\nrun_dir: run\n"
    )
    values = values_from(str(file), "launcher", "engine-0")
    assert (values["model"], values["run_dir"]) == (str(tmp_path / "model"), str(tmp_path / "run"))
    settings = SchedulerSettings(cluster=str(file))
    assert settings.api_keys.get_secret_value() == "one,two"
    assert "one" not in repr(settings)
    assert settings.instances == str(file), "read again when an engine is added"


def test_a_process_that_is_not_in_the_file_is_told_who_is(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("engines: [{kind: emulated, engines: 2}]")
    with pytest.raises(
        ClusterError, match="no engine is called 'engine-2'; the cluster has engine-0"
    ):
        PredictorSettings(cluster=str(file), name="engine-2")
    with pytest.raises(ClusterError, match="say with --name which engine is meant"):
        PredictorSettings(cluster=str(file))
    with pytest.raises(
        ClusterError, match="no scheduler is called 'x'; the cluster has scheduler-0"
    ):
        SchedulerSettings(cluster=str(file), name="x")
    with pytest.raises(ClusterError, match="cannot read the cluster file"):
        load_cluster(tmp_path / "none.yaml")
