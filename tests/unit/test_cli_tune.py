"""`foretell tune`: what is tried on which cluster, and what it says."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner

from foretell.cli.main import app
from foretell.tools.simulate.cluster import engine_facts
from foretell.tools.simulate.options import EngineOptions, SimulateOptions
from foretell.tools.tune.changes import applied, propose
from foretell.tools.tune.cluster_file import with_cluster
from foretell.tools.tune.options import Memory, TuneOptions
from foretell.tools.tune.report import verdict
from foretell.tools.tune.run import Tuned, pieces_of
from foretell.tools.tune.search import Judge, Measures, Setup, search
from foretell.workload import Arrival, Trace

A30, H100 = "A30/Llama-2-7b-hf", "H100/Llama-3.1-8B"
UNTIMED = Trace((Arrival(0.0, 100, 20, ""),), timed=False)
CLUSTER = """
models:
  m: {args: --max-model-len 4k --max_num_seqs 24}
engines:
  - {engines: 2, args: --num-gpu-blocks-override=500 --gpu-memory-utilization 0.9}
  - {profile: H100/Llama-3.1-8B, args: --max-num-seqs 100 --gpu-memory-utilization 0.9}
policy: {name: least_outstanding}
targets: {ttft_target_ms: 1500}
schedulers: {replicas: 1}
"""


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    draws = Random(1)
    lines = ["num_prefill_tokens,num_decode_tokens"]
    lines += [f"{draws.randint(100, 400)},{draws.randint(20, 200)}" for _ in range(150)]
    path = tmp_path / "lengths.csv"
    path.write_text("\n".join(lines))
    return path


def options(**changes: Any) -> SimulateOptions:
    return replace(SimulateOptions("none", (EngineOptions(A30, 2),)), **changes)


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["tune", *arguments], env={"COLUMNS": "150"})
    assert result.exit_code == 0, result.output
    return result.stdout


def limits(lengths: Path, blocks: int, qps: float) -> list[str]:
    command = ["--trace", str(lengths), "--profile", A30, "--policy", "least_outstanding"]
    command += ["--num-blocks", str(blocks), "--qps", str(qps), "--processes", "1"]
    kept = ("policy", "watermark", "max-num-seqs", "max-num-batched-tokens", "scheduling-policy")
    return [*command, *(word for flag in kept for word in ("--keep", flag))]


def test_more_kv_blocks_are_recommended_where_memory_is_short(lengths: Path) -> None:
    command = limits(lengths, blocks=120, qps=4.0)
    more = ("--capacity-ttft-p99-s", "3", "--json")
    found = json.loads(invoke(*command, *more))
    (engines,) = found["recommended"]["engine_flags"]
    assert engines["profile"] == A30
    assert "fp8" in engines["flags"]
    assert found["changes"]["ttft_p99"]["high"] < 0
    assert found["after"]["preemptions_per_1000"] < found["before"]["preemptions_per_1000"]
    before, after = found["capacity_qps"]
    assert 0 < before < after
    assert found["left_out"]["policy"] == "kept, as asked"
    shown = invoke(*command)
    assert f"vllm serve ... {' '.join(engines['flags'])}    ({A30})" in shown
    assert "answers change a little" in " ".join(shown.split())


def test_what_gains_at_the_cost_of_something_else_is_said() -> None:
    def simulate(runs: Sequence[tuple[Setup, int]]) -> list[Measures]:
        return [{"ttft_p99": 2.0 - bool(setup), "e2e_p99": 9.0 + bool(setup)} for setup, _ in runs]

    proposals = propose(options(), UNTIMED, Memory(), frozenset())
    tuning = TuneOptions()
    judge = Judge(tuning.goal, tuning.tolerance)
    found = search(proposals.changes[:1], simulate, judge, range(1, 7), range(7, 13))
    tuned = Tuned(options(), tuning, proposals, found, arrivals_shared=False)
    said = list(verdict(tuned))
    assert said[0].startswith("Leave everything as it is")
    assert said[1:] == ["--watermark 0.01 gains, but worsens P99 e2e."]


def test_nothing_is_recommended_where_nothing_is_to_be_gained(lengths: Path) -> None:
    shown = invoke(*limits(lengths, blocks=1056, qps=0.5))
    assert shown.startswith("Leave everything as it is")
    assert "--kv-cache-dtype fp8" in shown  # it was tried


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--cluster FILE, or --profile"),
        (["--profile", "B7/none"], "unknown GPU profile"),
        (["--profile", A30, "--keep", "none"], "the flags are"),
        (["--profile", A30, "--goal", "goodput", "--keep", "policy"], "no request has targets"),
        (["--cluster", "none.yaml"], "cannot read the cluster file"),
    ],
)
def test_it_says_what_is_wrong(lengths: Path, arguments: list[str], words: str) -> None:
    command = ["tune", "--trace", str(lengths), "--qps", "20", "--processes", "1", *arguments]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1
    assert words in result.output


def test_flags_are_varied_around_what_there_is() -> None:
    proposals = propose(options(), UNTIMED, Memory(), frozenset())
    tried = [" ".join(change.engine_flags[:1]) or str(change) for change in proposals.changes]
    assert "--max-num-seqs 96" in tried
    assert "--max-num-batched-tokens 256" in tried
    assert "--scheduling-policy priority" in tried
    assert set(proposals.left_out) == {"policy", "enable-prefix-caching"}
    assert [str(change) for change in proposals.changes][-1] == "--kv-cache-dtype fp8"


def test_unlike_engines_are_varied_each_around_its_own() -> None:
    unlike = options(engines=(EngineOptions(A30, 2), EngineOptions(H100, 1)))
    changes = {str(c): c for c in propose(unlike, UNTIMED, Memory(), frozenset()).changes}
    seats = changes["--max-num-seqs 96 / --max-num-seqs 512"]
    assert [e.max_num_seqs for e in applied(unlike, (seats,)).engines] == [96, 512]
    blocks = applied(unlike, (changes["--kv-cache-dtype fp8"],)).engines
    assert [engine.num_blocks for engine in blocks] == [2 * 1056, 2 * 24_881]
    assert "extrapolated" in seats.note  # the profile of the H100 has steps of up to 256 sequences


def test_blocks_that_fp8_and_more_of_the_memory_give() -> None:
    changes = {c.kind: c for c in propose(options(), UNTIMED, Memory(), frozenset()).changes}
    fp8, more = changes["kv-cache-dtype"], changes["gpu-memory-utilization"]

    def blocks(*setup: Any) -> int:
        changed = applied(options(), setup)
        return int(engine_facts(changed.engines[0], changed)["num_blocks"])

    added = int(0.03 * 24e9 / (2 * 32 * 32 * 128 * 2 * 16))  # Llama-2-7b on 24 GB
    assert blocks(more) == pytest.approx(1056 + added, abs=1)
    assert blocks(fp8) == 2 * 1056
    assert blocks(fp8, more) == blocks(more, fp8) == pytest.approx(2 * (1056 + added), abs=2)


def test_what_vllm_would_refuse_is_not_tried() -> None:
    tight = options(engines=(EngineOptions(A30, 1, max_num_batched_tokens=64, max_num_seqs=48),))
    tried = {str(change) for change in propose(tight, UNTIMED, Memory(), frozenset()).changes}
    assert "--max-num-seqs 96" not in tried
    assert "--max-num-batched-tokens 32" not in tried
    assert "--max-num-batched-tokens 128" in tried


def test_memory_of_a_profile_whose_sizes_are_not_known(tmp_path: Path) -> None:
    source = Path("foretell/latency/profiles/A30__Llama-2-7b-hf.json")
    path = tmp_path / "mine.json"
    path.write_text(source.read_text().replace('"A30/Llama-2-7b-hf"', '"MINE/own"'))
    own = options(engines=(EngineOptions(str(path), 1),))
    left_out = propose(own, UNTIMED, Memory(), frozenset()).left_out
    assert "not known" in left_out["gpu-memory-utilization"]
    on = propose(options(), UNTIMED, Memory(0.95, "fp8"), frozenset()).left_out
    assert on["kv-cache-dtype"] == "it is fp8 already"
    assert on["gpu-memory-utilization"] == "it is 0.95 already"


def test_prefix_caching_and_the_policy_that_knows_prefixes() -> None:
    trace = Trace((Arrival(0.0, 1000, 20, "", prefix=(1,)),), timed=True)
    off = options(prefix_caching=False, policy="least_outstanding")
    changes = {c.kind: c for c in propose(off, trace, Memory(), frozenset()).changes}
    assert changes["enable-prefix-caching"].engine_flags == ("--enable-prefix-caching",)
    assert changes["policy"].cluster_fields == {"policy.name": "slo"}
    both = applied(off, (changes["policy"], changes["enable-prefix-caching"]))
    assert (both.policy, both.prefix_caching) == ("slo", True)
    blind = propose(off, UNTIMED, Memory(), frozenset())
    assert "does not name" in blind.left_out["enable-prefix-caching"]


def test_engines_of_a_cluster_file(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER)
    with pytest.raises(ValueError, match="engine-0 has no GPU profile"):
        with_cluster(options(), str(path), None, {})
    path.write_text(CLUSTER.replace("engines: 2,", f"engines: 2, profile: {A30},"))
    found, memory = with_cluster(options(), str(path), None, {})
    assert found.engines == (
        EngineOptions(A30, 2, max_num_seqs=24, num_blocks=500, max_model_len=4000),
        EngineOptions(H100, 1, max_num_seqs=100, max_model_len=4000),
    )
    assert (found.policy, found.schedulers) == ("least_outstanding", 1)
    assert (found.ttft_slo_s, found.scheduling_policy) == (1.5, "fcfs")
    assert memory == Memory(0.9, "auto")
    over, _ = with_cluster(options(), str(path), [H100], {"num_blocks": [77]})
    assert [(e.profile, e.num_blocks) for e in over.engines] == [(H100, 77), (H100, 77)]


def test_engines_that_one_search_cannot_tune(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER.replace("--gpu-memory-utilization 0.9}", "--watermark 0.1}", 1))
    with pytest.raises(ValueError, match="a file of their own"):
        with_cluster(options(), str(path), [A30], {})
    path.write_text("models: {m: {args: --kv-cache-dtype fp8}}\nengines: 1\n")
    with pytest.raises(ValueError, match="--num-blocks"):
        with_cluster(options(), str(path), [A30], {})
    path.write_text("models: {m: {args: --max-num-seqs many}}\nengines: 1\n")
    with pytest.raises(ValueError, match="many is no number"):
        with_cluster(options(), str(path), [A30], {})


def test_seeds_take_pieces_of_a_recorded_day() -> None:
    day = Trace(tuple(Arrival(float(t), 100, 20, "") for t in range(1000)), timed=True)
    found = pieces_of(options(requests=100), day, 4)
    assert {seed: piece.skip for seed, piece in found.items()} == {1: 0, 2: 600, 3: 300, 4: 900}
    assert pieces_of(options(requests=600), day, 4) == {}
    assert pieces_of(options(), day, 4) == {}
    assert pieces_of(options(requests=100), replace(day, timed=False), 4) == {}
