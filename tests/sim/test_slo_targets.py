"""Targets and admission in simulated clusters."""

from dataclasses import replace
from random import Random

import pytest

from foretell.latency.linear import LinearStepTime
from foretell.model import NO_SLO, EngineConfig, Slo
from foretell.policy import make_policy
from foretell.sim import ClusterConfig, Fault, FaultKind, Report, SimInstanceConfig, simulate
from foretell.workload import Arrival, LogNormal, LogNormalLengths, poisson, stream

ENGINE = EngineConfig("small", 16, 40, 4, 64, 256)
STEP_TIME = LinearStepTime((0.010, 1e-4, 1e-9, 0.0, 1e-4, 1e-7))
CLUSTER = ClusterConfig((SimInstanceConfig(ENGINE, STEP_TIME),) * 2)
TIGHT = Slo(0.15, 0.05)


def arrivals(seed: int, slo: Slo, qps: float = 40.0, count: int = 60) -> list[Arrival]:
    draws = Random(seed)
    lengths = LogNormalLengths(LogNormal(30, 0.5, 120), LogNormal(20, 0.5, 100))
    return [replace(a, slo=slo) for a in stream(count, poisson(qps, draws), lengths, draws)]


def run(config: ClusterConfig, coming: list[Arrival], policy: str = "slo") -> Report:
    return simulate(config, coming, [make_policy(policy)], Random(1))


@pytest.mark.parametrize("sick", [False, True])
@pytest.mark.parametrize("policy", ["slo", "predicted_latency", "random"])
def test_every_request_ends_once_or_is_rejected(policy: str, sick: bool) -> None:
    faults = (Fault(FaultKind.CRASH, 0, 0.3, 0.2), Fault(FaultKind.DEAD_PREDICTOR, 1, 0.5, 0.2))
    config = replace(CLUSTER, reject_late=True, network_delay_s=0.002)
    rejected = 0
    for seed in range(12):
        coming = arrivals(seed, TIGHT)
        report = run(replace(config, faults=faults if sick else ()), coming, policy)
        ended = [*(r.request_id for r in report.served), *report.lost, *report.rejected]
        assert sorted(ended) == sorted(a.request_id for a in coming)
        rejected += len(report.rejected)
    assert bool(rejected) == (policy != "random")  # a policy without predictions rejects nothing


@pytest.mark.parametrize("draw", [3, 4, 5])
def test_who_is_late_makes_way_so_that_as_many_are_in_time_as_if_it_was_rejected(draw: int) -> None:
    coming = arrivals(draw, TIGHT)
    serving, rejecting = (run(replace(CLUSTER, reject_late=late), coming) for late in (False, True))
    assert serving.rejected == ()
    assert len(rejecting.rejected) > 0
    assert serving.within_slo >= rejecting.within_slo
    good = sum(r.within_slo for r in rejecting.served)
    assert rejecting.within_slo == good / len(coming)
    assert rejecting.goodput_rps == pytest.approx(good / rejecting.makespan_s)


def test_a_rejection_was_right_with_true_lengths() -> None:
    """A rejected request would have been late: later arrivals make no request faster."""
    coming = arrivals(3, TIGHT)
    config = replace(CLUSTER, reject_late=True, foretell_every=0)
    first = run(config, coming).rejected[0]
    before = [a for a in coming if a.t_s <= next(b.t_s for b in coming if b.request_id == first)]
    late = run(replace(config, reject_late=False), before).served[-1]
    assert late.request_id == first
    assert late.ttft_s > TIGHT.ttft_s


def test_without_targets_nothing_is_missed() -> None:
    report = run(CLUSTER, arrivals(1, NO_SLO))
    assert report.within_slo == 1.0
    assert report.goodput_rps == report.throughput_rps


def test_priorities_reach_engines_that_schedule_by_them() -> None:
    """All arrive at once at one engine: the urgent ones get their first tokens first."""
    coming = [
        replace(a, t_s=0.0, priority=index % 2) for index, a in enumerate(arrivals(1, NO_SLO))
    ]
    means = {}
    for policy in ("fcfs", "priority"):
        engine = replace(ENGINE, policy=policy)
        report = run(ClusterConfig((SimInstanceConfig(engine, STEP_TIME),)), coming, "random")
        ttfts = [r.ttft_s for r in report.served]
        means[policy] = sum(ttfts[::2]) / sum(ttfts[1::2])
    assert means["priority"] < 0.6
    assert means["fcfs"] > 0.8
