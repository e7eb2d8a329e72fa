"""Whole clusters in virtual time: many seeds, small engines, all invariants checked."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from random import Random

import pytest

from foretell.engine import Twin
from foretell.latency.linear import LinearStepTime
from foretell.model import EngineConfig, LengthEstimate
from foretell.policy import POLICIES, make_policy
from foretell.policy.baselines import BASELINES
from foretell.sim import (
    ClusterConfig,
    Fault,
    FaultKind,
    InvariantError,
    Report,
    SimInstanceConfig,
    simulate,
    true_length,
)
from foretell.workload import Arrival, LogNormal, LogNormalLengths, gamma, poisson, stream

STEP_TIME = LinearStepTime((0.010, 1e-4, 1e-9, 0.0, 1e-4, 1e-7))
SLOWER = LinearStepTime((0.013, 2e-4, 1e-9, 0.0, 1e-4, 1e-7))


def small_engine(draws: Random) -> EngineConfig:
    """An engine that a few short requests overload."""
    max_num_seqs = draws.randint(1, 8)
    chunked = draws.random() < 0.8
    return EngineConfig(
        model_name="small",
        block_size_tokens=draws.choice([1, 4, 16]),
        total_blocks=0,
        max_num_seqs=max_num_seqs,
        max_num_scheduled_tokens=max_num_seqs + draws.randint(0, 40) if chunked else 128,
        max_model_len=128,
        long_prefill_token_threshold=draws.choice([0, 0, 5]) if chunked else 0,
        policy=draws.choice(["fcfs", "fcfs", "priority"]),
        enable_chunked_prefill=chunked,
        watermark_ratio=draws.choice([0.0, 0.0, 0.1]),
        reserve_full_isl=draws.random() < 0.7,
        async_scheduling=draws.random() < 0.5,
    )


def with_blocks(engine: EngineConfig, tokens: int) -> EngineConfig:
    """`engine` with KV blocks for `tokens`."""
    return replace(engine, total_blocks=engine.blocks_for(tokens))


def small_cluster(seed: int) -> tuple[ClusterConfig, list[Arrival]]:
    draws = Random(seed)
    engines = []
    for _ in range(draws.randint(1, 4)):
        engine = small_engine(draws)
        engines.append(with_blocks(engine, draws.randint(128, 200)))
    lengths = LogNormalLengths(LogNormal(16, 1.0, 64), LogNormal(36, 1.0, 64))
    times_s = gamma(draws.choice([10.0, 40.0, 160.0]), draws.choice([0.3, 1.0, 4.0]), draws)
    config = ClusterConfig(
        instances=tuple(
            SimInstanceConfig(engine, draws.choice([STEP_TIME, SLOWER])) for engine in engines
        ),
        estimate=draws.choice([true_length, lambda arrival: LengthEstimate(20.0)]),
        publish_interval_s=draws.choice([0.01, 0.05, 0.5]),
        network_delay_s=draws.choice([0.0, 0.003]),
    )
    return config, stream(24, times_s, lengths, draws)


def small_faults(seed: int, config: ClusterConfig) -> ClusterConfig:
    """`config` with a few faults while its requests arrive."""
    draws = Random(f"faults {seed}")
    faults = [
        Fault(
            draws.choice(list(FaultKind)),
            draws.randrange(len(config.instances)),
            at_s=draws.uniform(0.0, 1.5),
            for_s=draws.choice([0.1, 0.5, inf]),
        )
        for _ in range(draws.randint(1, 4))
    ]
    return replace(config, faults=tuple(faults))


def run(seed: int, policy: str) -> Report:
    config, arrivals = small_cluster(seed)
    return simulate(config, arrivals, [make_policy(policy)], Random(seed))


def run_badly(seed: int, policy: str) -> Report:
    """Run with faults and, for every other seed, three schedulers."""
    config, arrivals = small_cluster(seed)
    policies = [make_policy(policy) for _ in range(1 + 2 * (seed % 2))]
    return simulate(small_faults(seed, config), arrivals, policies, Random(seed))


@contextmanager
def replayable(seed: int, test: str) -> Iterator[None]:
    """Add to any failure how to replay it."""
    try:
        yield
    except Exception as error:
        error.add_note(f"replay: pytest tests/sim/test_cluster.py --seed {seed} -k '{test}'")
        raise


@pytest.mark.parametrize("policy", [*POLICIES, *BASELINES])
def test_invariants_hold(seed: int, policy: str) -> None:
    with replayable(seed, f"invariants and {policy}"):
        report = run(seed, policy)
        _, arrivals = small_cluster(seed)
        assert [r.request_id for r in report.served] == [a.request_id for a in arrivals]
        assert all(0 < r.ttft_s <= r.e2e_s for r in report.served)


@pytest.mark.parametrize("policy", [*POLICIES, *BASELINES])
def test_invariants_hold_when_things_fail(seed: int, policy: str) -> None:
    with replayable(seed, f"fail and {policy}"):
        report = run_badly(seed, policy)
        _, arrivals = small_cluster(seed)
        served = [r.request_id for r in report.served]
        assert sorted([*served, *report.lost]) == sorted(a.request_id for a in arrivals)


def test_sweep_loses_and_retries() -> None:
    """The faults hit requests: a sweep without losses and retries would prove little."""
    reports = [run_badly(seed, "predicted_latency") for seed in range(30)]
    assert sum(bool(report.lost) for report in reports) >= 3
    assert sum(any(r.attempts > 1 for r in report.served) for report in reports) >= 3


def test_last_forecast_comes_true(seed: int) -> None:
    """A request with true lengths and none behind it does as predicted if none before it leaves the
    queue: an old snapshot is rolled forward to what the engine does."""
    with replayable(seed, "forecast"):
        config, arrivals = small_cluster(seed)
        config = replace(config, estimate=true_length, foretell_every=0)
        config = replace(config, network_delay_s=0.0, publish_interval_s=0.1)
        report = simulate(config, arrivals, [make_policy("predicted_latency")], Random(seed))
        last = report.served[-1]
        assert last.predicted is not None
        assert last.predicted.ttft_s == pytest.approx(last.ttft_s, rel=1e-6)
        assert last.predicted.e2e_s == pytest.approx(last.e2e_s, rel=1e-6)


@pytest.mark.parametrize(("every", "told"), [(0, 12), (1, 12), (5, 2)])
def test_some_are_predicted_and_placed_as_before(every: int, told: int) -> None:
    config, arrivals = small_cluster(3)
    arrivals = arrivals[:12]
    policy = [make_policy("predicted_latency")]
    usual = simulate(config, arrivals, policy, Random(3)).served
    report = simulate(replace(config, foretell_every=every), arrivals, policy, Random(3))
    assert sum(r.predicted is not None for r in report.served) == told
    assert [(r.instance_id, r.e2e_s) for r in report.served] == [
        (r.instance_id, r.e2e_s) for r in usual
    ]


def test_sweep_reaches_preemption() -> None:
    """The clusters are small enough: a sweep without preemption would prove little."""
    preempted = sum(run(seed, "random").preemptions > 0 for seed in range(20))
    assert preempted >= 10


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_computed_tokens_count_what_is_computed_again(async_scheduling: bool) -> None:
    draws = Random(1)
    lengths = LogNormalLengths(LogNormal(120, 1.0, 512), LogNormal(80, 1.0, 400))
    arrivals = stream(60, poisson(60.0, draws), lengths, draws)
    # With async scheduling ends are seen a step late: one token is computed in vain.
    beyond = 0 if async_scheduling else -1
    once = sum(a.prompt_tokens + a.output_tokens + beyond for a in arrivals)
    engine = EngineConfig("model", 16, 4000, 16, 256, 1024, async_scheduling=async_scheduling)

    def served(engine: EngineConfig) -> Report:
        config = ClusterConfig((SimInstanceConfig(engine, STEP_TIME),) * 2)
        return simulate(config, arrivals, [make_policy("random")], Random(1))

    roomy, tight = served(engine), served(replace(engine, total_blocks=70))
    assert (roomy.preemptions, roomy.computed_tokens) == (0, once)
    assert tight.preemptions > 0
    assert tight.computed_tokens > once


@pytest.mark.parametrize("policy", [*POLICIES, *BASELINES])
def test_same_seed_same_report(policy: str) -> None:
    assert run(7, policy) == run(7, policy)
    assert run_badly(7, policy) == run_badly(7, policy)


def saturated(seed: int, policy: str) -> Report:
    draws = Random(seed)
    engine = EngineConfig("model", 16, 150, 16, 256, 1024)
    lengths = LogNormalLengths(LogNormal(120, 1.0, 512), LogNormal(80, 1.0, 400))
    arrivals = stream(150, poisson(60.0, draws), lengths, draws)
    config = ClusterConfig((SimInstanceConfig(engine, STEP_TIME),) * 3)
    return simulate(config, arrivals, [make_policy(policy)], Random(seed))


def test_prediction_beats_chance_when_saturated() -> None:
    for seed in range(6):
        predicted, chance = saturated(seed, "predicted_latency"), saturated(seed, "random")
        assert predicted.mean(lambda r: r.ttft_s) < chance.mean(lambda r: r.ttft_s), seed
        assert predicted.mean(lambda r: r.e2e_s) < chance.mean(lambda r: r.e2e_s), seed


@pytest.mark.parametrize(
    ("prompt_tokens", "output_tokens", "words"),
    [(100, 100, "max_model_len"), (8, 0, "at least one"), (0, 8, "at least one")],
)
def test_request_that_no_engine_serves_is_refused(
    prompt_tokens: int, output_tokens: int, words: str
) -> None:
    config, _ = small_cluster(0)
    arrivals = [Arrival(0.0, prompt_tokens, output_tokens, "r0")]
    with pytest.raises(ValueError, match=words):
        simulate(config, arrivals, [make_policy("random")], Random(0))


def test_cluster_without_engines_or_schedulers_is_refused() -> None:
    with pytest.raises(ValueError, match="engine"):
        ClusterConfig(())
    with pytest.raises(ValueError, match="scheduler"):
        simulate(small_cluster(0)[0], [], [], Random(0))


def test_lost_request_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    add = Twin.add
    monkeypatch.setattr(
        Twin, "add", lambda self, seq, row: None if seq.request_id == "r5" else add(self, seq, row)
    )
    with pytest.raises(InvariantError, match="r5"):
        run(0, "random")


def test_second_ending_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = Twin.ended
    monkeypatch.setattr(Twin, "ended", lambda *arguments: ended(*arguments) * 2)
    with pytest.raises(InvariantError, match="was not here"):
        run(0, "random")


def test_time_does_not_go_backwards() -> None:
    config, _ = small_cluster(0)
    with pytest.raises(InvariantError, match="time went"):
        simulate(config, [Arrival(-1.0, 8, 8, "r0")], [make_policy("random")], Random(0))
