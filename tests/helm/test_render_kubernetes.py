"""`foretell render kubernetes`: the chart as plain manifests, and a cluster file as its values."""

import os
import sys
from pathlib import Path

import pytest
import yaml

pytest.importorskip("helm_python", reason="make test-helm installs Helm's library")

from foretell.config import Cluster, ClusterError, Layout, load_cluster
from foretell.config.cluster import parse_cluster
from foretell.config.layout import engine_args, engine_profile, served_name
from foretell.tools.chart import rendered
from foretell.tools.chart.from_cluster import values_of

ROOT = Path(__file__).parents[2]
SHIPPED = (
    "cluster.yaml",
    "deploy/cluster.emulated.yaml",
    "deploy/cluster.envoy.yaml",
    "deploy/cluster.provisioned.yaml",
)
MANY = """
models:
  Qwen/Qwen3-8B: {args: --max-model-len 16384}
  org/Qwen3-8B: {path: hub/other}
engines:
  - {host: a, model: Qwen/Qwen3-8B, engines: 2, gpus: 2, profile: A30/Llama-2-7b-hf}
  - {host: b, model: Qwen/Qwen3-8B, args: "--note 'two words'", offline: true}
  - {host: b, model: org/Qwen3-8B, name: third}
policy: {name: slo, parameters: {tolerance: 0.1}}
targets: {ttft_target_ms: 500}
schedulers: {replicas: 3, drain_timeout_s: 60}
tagger: {threads: 2}
observability: {log_format: json}
batches: {folder: /b, database_url: 'postgresql://db/b', files_url: 's3://b/b'}
"""


def _through_the_chart(cluster: Cluster, folder: Path) -> Cluster:
    """The cluster file in the pods that the chart makes of `cluster`."""
    text = rendered.manifests(values_of(cluster, {}), "demo", "llm")
    for each in yaml.safe_load_all(text):
        if each["metadata"]["name"] == "demo-foretell-cluster":
            file = folder / "cluster.yaml"
            file.write_text(each["data"]["cluster.yaml"])
            return load_cluster(file)
    raise AssertionError("no cluster file")


def _clusters() -> dict[str, Cluster]:
    shipped = {name: load_cluster(ROOT / name) for name in SHIPPED}
    return shipped | {"many": parse_cluster(MANY, "many")}


@pytest.mark.parametrize("name", [*SHIPPED, "many"])
def test_a_cluster_file_means_the_same_in_pods(name: str, tmp_path: Path) -> None:
    before = _clusters()[name]
    after = _through_the_chart(before, tmp_path)
    expected = before.with_places().engine_list()
    found = after.engine_list()
    assert len(found) == len(expected)
    for here, there in zip(expected, found, strict=True):
        assert served_name(there) == served_name(here)
        assert there.section.kind == here.section.kind
        assert engine_profile(there) == engine_profile(here)
        own = [arg for arg in engine_args(there) if not arg.startswith("--shutdown-timeout=")]
        assert own == engine_args(here)
        assert there.model.path == here.model.path
    assert after.policy == before.policy
    assert after.targets == before.targets
    kept = {"max_body_bytes", "drain_timeout_s", "length_model", "replicas"}
    if "drain_timeout_s" not in before.schedulers.model_fields_set:
        kept -= {"drain_timeout_s"}  # pods get a longer time to end than processes
    assert after.schedulers.model_dump(include=kept) == before.schedulers.model_dump(include=kept)
    assert after.tagger.threads == before.tagger.threads
    assert after.batches.database_url == before.batches.database_url
    assert Layout(after).several_hosts


def test_what_only_this_host_has_is_refused_by_its_field() -> None:
    text = "models: {m: {path: /models/m}}\nengines: 1\nschedulers: {api_keys_file: /keys}\n"
    cluster = parse_cluster(text + "tagger: {checkpoint: /c}\n", "file")
    with pytest.raises(ClusterError) as refused:
        values_of(cluster, {})
    for field in ("schedulers.api_keys_file", "models.m.path", "tagger.checkpoint"):
        assert field in str(refused.value)
    given = {"secrets": {"apiKeys": {"name": "a", "key": "b"}}, "models": [{"name": "m"}]}
    with pytest.raises(ClusterError) as refused:
        values_of(cluster, given)
    assert str(refused.value).startswith("tagger.checkpoint")


def test_given_values_go_before_those_of_the_cluster_file() -> None:
    given = {"schedulers": {"replicas": 5}, "cluster": {"targets": {"ttft_target_ms": 1}}}
    values = values_of(parse_cluster(MANY, "many"), given)
    assert values["schedulers"]["replicas"] == 5
    assert values["cluster"]["targets"] == {"ttft_target_ms": 1}
    assert values["cluster"]["policy"]["parameters"] == {"tolerance": 0.1}


def test_wrong_values_are_an_error_that_names_them() -> None:
    with pytest.raises(ClusterError, match="/schedulers/replicas"):
        rendered.manifests({"schedulers": {"replicas": 0}}, "demo", "llm")


def test_tests_and_notes_are_no_manifests() -> None:
    kinds = {each["kind"] for each in yaml.safe_load_all(rendered.manifests({}, "demo", "llm"))}
    assert "Pod" not in kinds
    assert "StatefulSet" in kinds


def test_without_the_library_the_program_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "helm_python", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="helm-python-sdk"):
        rendered.manifests({}, "demo", "llm")
    program = tmp_path / "helm"
    program.write_text(
        f"#!{sys.executable}\nimport sys\n"
        "print(sys.argv[1:3], sys.stdin.read())\nif 'bad' in sys.argv: sys.exit('it is bad')\n"
    )
    program.chmod(0o755)
    assert os.access(program, os.X_OK)
    found = rendered.manifests({"tagger": {"replicas": 2}}, "demo", "llm")
    assert found == "['template', 'demo'] {\"tagger\": {\"replicas\": 2}}\n"
    with pytest.raises(ClusterError, match="it is bad"):
        rendered.manifests({}, "bad", "llm")
