"""Each fault does to an instance what it says, and nothing to the others."""

from itertools import pairwise
from random import Random
from statistics import fmean

import pytest

from foretell.engine.snapshot_cache import STALE_S
from foretell.latency.linear import LinearStepTime
from foretell.model import EngineConfig
from foretell.policy import make_policy
from foretell.sim import (
    ClusterConfig,
    Fault,
    FaultKind,
    Report,
    ServedRequest,
    SimInstanceConfig,
    simulate,
)
from foretell.workload import LogNormal, LogNormalLengths, poisson, stream

STEP_TIME = LinearStepTime((0.010, 1e-4, 1e-9, 0.0, 1e-4, 1e-7))
ENGINE = EngineConfig("model", 16, 400, 16, 256, 1024, async_scheduling=True)
LENGTHS = LogNormalLengths(LogNormal(60, 1.0, 256), LogNormal(40, 0.5, 200))


def run(*faults: Fault, policy: str = "predicted_latency", schedulers: int = 1) -> Report:
    draws = Random(1)
    arrivals = stream(200, poisson(20.0, draws), LENGTHS, draws)  # for ten seconds
    config = ClusterConfig((SimInstanceConfig(ENGINE, STEP_TIME),) * 2, faults=faults)
    policies = [make_policy(policy) for _ in range(schedulers)]
    return simulate(config, arrivals, policies, Random(1))


def on(report: Report, index: int) -> list[ServedRequest]:
    found = [r for r in report.served if r.instance_id == f"engine-{index}"]
    assert found
    return found


def test_a_slow_instance_is_slow_for_its_time() -> None:
    report = run(Fault(FaultKind.SLOW, 0, 3.0, 2.0, factor=4.0), policy="round_robin")

    def tpot_s(index: int, since_s: float, until_s: float) -> float:
        ended = [r for r in on(report, index) if since_s < r.arrival_s < until_s]
        return fmean(r.tpot_s for r in ended if r.output_tokens > 1)

    assert tpot_s(0, 3.0, 4.0) > 2.0 * tpot_s(1, 3.0, 4.0)
    assert tpot_s(0, 7.0, 10.0) == pytest.approx(tpot_s(1, 7.0, 10.0), rel=0.3)


def test_a_dead_predictor_says_nothing() -> None:
    report = run(Fault(FaultKind.DEAD_PREDICTOR, 0, 3.0, 5.0))
    silent = [r for r in on(report, 0) if r.predicted is None]
    assert silent
    assert all(2.9 + STALE_S <= r.arrival_s <= 8.0 for r in silent)
    assert all(r.predicted is not None for r in on(report, 1))


def test_a_mute_engine_is_known_as_it_was() -> None:
    report = run(Fault(FaultKind.MUTE, 0, 3.0, 2.0))

    def oldest_s(index: int) -> float:
        return max(r.predicted.snapshot_age_s for r in on(report, index) if r.predicted)

    assert 0.5 < oldest_s(0) <= 2.0
    assert oldest_s(1) < 0.5


def test_a_crashed_engine_comes_back_empty() -> None:
    report = run(Fault(FaultKind.CRASH, 0, 3.0, 2.0), policy="least_outstanding")
    assert report.lost
    assert not [r for r in on(report, 0) if 3.0 <= r.arrival_s <= 5.0 and r.attempts == 1]
    assert [r for r in on(report, 0) if r.arrival_s > 5.0]
    assert len(report.served) + len(report.lost) == 200


def test_a_cluster_without_engines_loses_everything() -> None:
    report = run(Fault(FaultKind.CRASH, 0, 0.0), Fault(FaultKind.CRASH, 1, 0.0))
    assert (len(report.served), len(report.lost)) == (0, 200)
    assert report.throughput_rps == 0.0


def test_schedulers_count_for_themselves() -> None:
    """Two round robins start anywhere and advance independently, so they do not alternate."""
    alone, two = run(policy="round_robin"), run(policy="round_robin", schedulers=2)
    assert len(on(alone, 0)) == len(on(alone, 1)) == 100
    ids = [r.instance_id for r in two.served]
    assert any(a == b for a, b in pairwise(ids))
