"""`foretell simulate` and `foretell capacity`: options, output, and repeatability."""

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner

from foretell.cli.main import app
from foretell.sim import Fault, FaultKind
from foretell.tools.simulate import capacity
from foretell.tools.simulate.cluster import cluster_config, engine_facts, parse_fault
from foretell.tools.simulate.options import EngineOptions, SimulateOptions, parse_engines
from foretell.tools.simulate.run import run
from foretell.workload import Arrival

A30, H100 = "A30/Llama-2-7b-hf", "H100/Llama-3.1-8B"
KEYS = {"mean", "p50", "p95", "p99"}


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    """A trace without times."""
    draws = Random(1)
    lines = ["num_prefill_tokens,num_decode_tokens"]
    lines += [f"{draws.randint(1, 400)},{draws.randint(1, 60)}" for _ in range(60)]
    path = tmp_path / "lengths.csv"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def prefixed(tmp_path: Path) -> Path:
    """A trace in which each request's prompt begins with the previous one."""
    rows = [
        {"timestamp": 200 * i, "input_length": 2000, "output_length": 5, "hash_ids": [0, 1, 2, i]}
        for i in range(3, 30)
    ]
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    return path


def options(trace: Path, **changes: Any) -> SimulateOptions:
    made = SimulateOptions(str(trace), (EngineOptions(A30, 2),), "predicted_latency")
    return replace(made, **changes)


def invoke(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_it_prints_what_came_of_a_run(lengths: Path, tmp_path: Path) -> None:
    command = ["simulate", "--trace", str(lengths), "--profile", A30, "--instances", "2"]
    command += ["--policy", "llumnix_minus", "--qps", "20", "--seed", "3"]
    found = invoke(*command)
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        assert set(found[name]) == KEYS
        assert 0 < found[name]["p50"] <= found[name]["p95"] <= found[name]["p99"]
    assert (found["requests"], found["lost"], found["refused"]) == (60, 0, 0)
    assert found["throughput_rps"] > 0
    assert 0 < found["free_blocks"]["mean"] < 1056
    assert (found["policy"], found["qps"], found["seed"]) == ("llumnix_minus", 20, 3)
    assert found["profile"] == f"{A30}x2"
    assert invoke(*command) == found


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--profile", "B7/none"], "unknown GPU profile"),
        (["--profile", A30, "--policy", "none"], "unknown policy"),
        (["--profile", A30, "--qps", "0"], "qps"),
        (["--profile", A30, "--estimates", "noise:x"], "estimates"),
        (["--profile", A30, "--estimates", "guess"], "noise:SIGMA"),
        (["--profile", A30, "--estimates", "told", "--qps", "20"], "does not tell"),
        (["--profile", A30, "--fault", "crash:0"], "FOR_S"),
        (["--profile", A30, "--fault", "crash:7:1"], "no instance 7"),
        (["--profile", f"{A30}x2,{H100}"], "COUNT"),
        (["--profile", f"{A30}x2", "--instances", "3"], "--instances"),
        (["--profile", A30, "--max-num-seqs", "4", "--max-num-seqs", "5"], "--max-num-seqs"),
        (["--profile", A30, "--max-model-len", "1"], "fits"),
        (["--profile", "RTXPRO6000/Qwen3-30B-A3B"], "ranks"),
    ],
)
def test_it_says_what_is_wrong(lengths: Path, arguments: list[str], words: str) -> None:
    command = ["simulate", "--trace", str(lengths), "--qps", "20", *arguments]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1
    assert words in result.output


def test_it_refuses_what_is_no_choice(lengths: Path) -> None:
    option = "--scheduling-policy"
    command = ["simulate", "--trace", str(lengths), "--profile", A30, option, "none"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert option in result.output


def test_engines_of_several_kinds() -> None:
    limits: dict[str, Sequence[int]] = {"max_num_seqs": [48, 24], "num_blocks": [500]}
    first, second = parse_engines([f"{A30}x2", f"{H100}x3"], 0, limits)
    assert (first.profile, first.instances, first.max_num_seqs) == (A30, 2, 48)
    assert (second.profile, second.instances, second.max_num_seqs) == (H100, 3, 24)
    assert first.num_blocks == second.num_blocks == 500
    assert parse_engines([f"{A30}x2,{H100}x3"], 0, limits) == (first, second)
    assert parse_engines([A30], 0, {}) == (EngineOptions(A30, 1),)


def test_engines_are_as_their_profile_says_or_as_told(lengths: Path) -> None:
    given = options(lengths, engines=(EngineOptions(A30, 1), EngineOptions(H100, 2, num_blocks=99)))
    config = cluster_config(given, 1, prefixes=False)
    a30, h100, same = (instance.engine for instance in config.instances)
    assert (a30.total_blocks, a30.max_num_seqs, a30.max_num_scheduled_tokens) == (1056, 48, 512)
    assert (h100.total_blocks, h100.max_num_seqs, h100.async_scheduling) == (99, 256, True)
    assert h100 == same
    assert config.instances[0].step_time is not config.instances[1].step_time
    assert engine_facts(given.engines[1], given)["num_blocks"] == 99


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("crash:3:10", Fault(FaultKind.CRASH, 3, 10.0)),
        ("mute:0:1.5:20", Fault(FaultKind.MUTE, 0, 1.5, 20.0)),
        ("slow=4:1:2:3", Fault(FaultKind.SLOW, 1, 2.0, 3.0, factor=4.0)),
        ("dead-predictor:0:0:1", Fault(FaultKind.DEAD_PREDICTOR, 0, 0.0, 1.0)),
    ],
)
def test_faults_are_read(text: str, fault: Fault) -> None:
    assert parse_fault(text) == fault


@pytest.mark.parametrize("text", ["crash", "crash:x:1", "none:0:1", "crash=2:0:1", "mute:0:1:2:3"])
def test_no_faults(text: str) -> None:
    with pytest.raises(ValueError, match=r"KIND:INSTANCE:AT_S"):
        parse_fault(text)


def test_a_crash_costs(lengths: Path) -> None:
    good = run(options(lengths), 40.0, 1).summary()
    bad = run(options(lengths, faults=("crash:0:0.5:1",)), 40.0, 1).summary()
    assert (good["lost"], good["retried"]) == (0, 0)
    assert bad["lost"] > 0
    assert bad["requests"] == good["requests"] == 60
    assert run(options(lengths, faults=("slow=5:0:0.1",)), 40.0, 1).summary()["lost"] == 0


def test_noise_is_the_same_for_every_policy(lengths: Path) -> None:
    noisy = options(lengths, estimates="noise:0.8")
    first, other = (cluster_config(noisy, 1, prefixes=False).estimate for _ in range(2))
    asked = [Arrival(0.0, 10, tokens, "r") for tokens in (10, 20, 30)]
    assert list(map(first, asked)) == list(map(other, asked))
    seeded = cluster_config(noisy, 2, prefixes=False).estimate
    assert seeded(asked[0]) != cluster_config(noisy, 1, prefixes=False).estimate(asked[0])


def test_the_taggers_errors_are_drawn_from_the_traces_lengths(lengths: Path) -> None:
    tagged = options(lengths, estimates="tagger")
    assert run(tagged, 40.0, 1).summary()["estimates"] == "tagger"
    with pytest.raises(ValueError, match="the trace's lengths"):
        cluster_config(tagged, 1, prefixes=False)


def test_cached_prefixes_shorten_prefills(prefixed: Path) -> None:
    one = options(prefixed, engines=(EngineOptions(A30, 1),), policy="round_robin")
    cached = run(one, 0.0, 1).summary()
    computed = run(replace(one, prefix_caching=False), 0.0, 1).summary()
    assert cached["prefix_caching"]
    assert 0.5 < cached["cached_prompt_ratio"] < 1.0
    assert "cached_prompt_ratio" not in computed
    assert cached["ttft_s"]["mean"] < 0.5 * computed["ttft_s"]["mean"]
    assert cached["requests"] == computed["requests"] == 27


def test_what_no_engine_takes_is_refused(lengths: Path) -> None:
    small = options(lengths, engines=(EngineOptions(A30, 2, max_model_len=300),))
    found = run(small, 20.0, 1).summary()
    assert found["refused"] > 0
    assert found["requests"] + found["refused"] == 60


def test_targets_are_reported_where_there_are_any(lengths: Path) -> None:
    plain = run(options(lengths), 60.0, 1).summary()
    assert not {"goodput_rps", "within_slo", "rejected"} & set(plain)
    tight = options(lengths, policy="slo", ttft_slo_s=0.3, tpot_slo_s=0.1)
    found = run(tight, 60.0, 1).summary()
    assert 0 < found["within_slo"] < 1
    assert found["goodput_rps"] == pytest.approx(
        found["within_slo"] * found["throughput_rps"], rel=1e-4
    )
    assert (found["rejected"], found["requests"]) == (0, 60)
    strict = run(replace(tight, reject_late=True), 60.0, 1).summary()
    assert strict["rejected"] > 0
    assert strict["requests"] + strict["rejected"] == 60


def test_targets_of_the_trace_stand_where_the_options_give_none(tmp_path: Path) -> None:
    path = tmp_path / "classes.csv"
    path.write_text("in_tok,out_tok,ttft_slo_s,tpot_slo_s\n" + "300,30,0.001,\n30,30,,\n" * 10)
    assert run(options(path), 1.0, 1).summary()["within_slo"] == 0.5
    assert run(options(path, ttft_slo_s=60.0), 1.0, 1).summary()["within_slo"] == 1.0
    assert run(options(path, tpot_slo_s=1e-6), 1.0, 1).summary()["within_slo"] == 0.0


def test_goodput_as_the_criterion_of_capacity(
    lengths: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ratio falls with the rate, and is below 0.99 from 37 requests a second on."""
    monkeypatch.setattr(
        capacity, "probe", lambda options, qps, seed, *, goodput: goodput - qps / 3700.0
    )
    search = capacity.Search(3.0, (1,), 1.0, tolerance=0.01, goodput=0.99)
    given = options(lengths, ttft_slo_s=0.5)
    bracket = capacity.searched(given, search, 1)
    assert bracket.low <= 37.0 < bracket.high <= bracket.low * 1.01
    found = capacity.report(given, search, [bracket])
    assert (found["goodput"], found["ttft_slo_s"]) == (0.99, 0.5)
    assert "ttft_p99_bound_s" not in found
    assert f"{bracket.low:.4f}" in found["seeds"]["1"]["within_slo"]


def test_goodput_needs_targets(lengths: Path) -> None:
    with pytest.raises(ValueError, match="--ttft-slo-s"):
        capacity.probe(options(lengths), 20.0, 1, goodput=True)
    good = capacity.probe(options(lengths, ttft_slo_s=60.0), 20.0, 1, goodput=True)
    assert good == 1.0


def test_capacity_is_between_what_works_and_what_does_not(
    lengths: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P99 rises with the rate; the bound is kept below 37 and below 41 requests a second."""

    def probe(options: SimulateOptions, qps: float, seed: int, *, goodput: bool) -> float:
        return 3.0 * qps / (37.0 if seed == 1 else 41.0)

    monkeypatch.setattr(capacity, "probe", probe)
    for start_qps in (1.0, 500.0):
        search = capacity.Search(3.0, (1, 2), start_qps, tolerance=0.01)
        brackets = [capacity.searched(options(lengths), search, seed) for seed in (1, 2)]
        for bracket, edge in zip(brackets, (37.0, 41.0), strict=True):
            assert bracket.low <= edge < bracket.high <= bracket.low * 1.01
        found = capacity.report(options(lengths), search, brackets)
        assert found["capacity_qps"] == pytest.approx(39.0, rel=0.01)
        assert set(found["seeds"]) == {"1", "2"}


def test_capacity_gives_up(lengths: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "probe", lambda *case, goodput: 9.0)
    search = capacity.Search(3.0, (1,), 1.0, tolerance=0.01)
    bracket = capacity.searched(options(lengths), search, 1)
    assert bracket.low == 0.0
    assert len(bracket.probes) == 20


def test_capacity_in_processes(lengths: Path) -> None:
    command = ["capacity", "--trace", str(lengths), "--profile", A30, "--policy", "random"]
    command += ["--requests", "40", "--seeds", "2", "--tolerance", "0.5", "--ttft-p99-s", "0.4"]
    found = invoke(*command)
    for one in found["seeds"].values():
        assert 0 < one["capacity_qps"] < one["refuted_qps"]
        assert one["ttft_p99_s"][f"{one['capacity_qps']:.4f}"] <= 0.4


def test_instances_come_and_go_as_a_strategy_says(lengths: Path) -> None:
    arguments = ["simulate", "--trace", str(lengths), "--profile", A30, "--instances", "4"]
    arguments += ["--requests", "600", "--qps", "20", "--policy", "least_outstanding"]
    given = [*arguments, "--provision", "target", "--cold-start-s", "5"]
    found = invoke(*given)
    assert found["lost"] == 0
    provisioned = found["provisioning"]
    assert provisioned["instances"]["first"] == 1
    assert 1 < provisioned["instances"]["most"] <= 4
    assert provisioned["started"] >= provisioned["instances"]["most"] - 1
    assert provisioned["instance_hours"] < 4 * found["makespan_s"] / 3600
    assert invoke(*given) == found
    assert "provisioning" not in invoke(*arguments)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--provision", "more"], "unknown strategy 'more'"),
        (["--provision", "target", "--min-instances", "3"], "minimum <= maximum"),
    ],
)
def test_a_provisioning_that_cannot_be_is_refused(
    lengths: Path, flags: list[str], words: str
) -> None:
    arguments = ["simulate", "--trace", str(lengths), "--profile", A30, "--instances", "2"]
    result = CliRunner().invoke(app, [*arguments, *flags])
    assert words in str(result.exception)
