"""Whole clusters of engines that admit by priority: the largest requests go last, for a while."""

from dataclasses import replace
from math import inf
from random import Random
from statistics import fmean

import pytest

from foretell.latency.linear import LinearStepTime
from foretell.model import EngineConfig
from foretell.placement import recall
from foretell.policy import make_policy
from foretell.sim import ClusterConfig, Report, SimInstanceConfig, simulate
from foretell.workload import LogNormal, LogNormalLengths, poisson, stream

STEP_TIME = LinearStepTime((0.010, 1e-4, 1e-9, 0.0, 1e-4, 1e-7))
ENGINE = EngineConfig(
    model_name="m",
    block_size_tokens=16,
    total_blocks=160,
    max_num_seqs=16,
    max_num_scheduled_tokens=256,
    max_model_len=1024,
)
LENGTHS = LogNormalLengths(LogNormal(60, 1.0, 300), LogNormal(60, 1.5, 700))
RATE = 42.0
"""Memory is short at times."""
DRAWS = range(3)


def served(scheduling_policy: str, seed: int, *, schedulers: int = 1) -> Report:
    engine = SimInstanceConfig(replace(ENGINE, policy=scheduling_policy), STEP_TIME)
    arrivals = stream(600, poisson(RATE, Random(seed)), LENGTHS, Random(seed))
    policies = [make_policy("predicted_latency", late_binding=True) for _ in range(schedulers)]
    return simulate(ClusterConfig((engine,) * 2), arrivals, policies, Random(seed))


def longest_s(reports: list[Report]) -> float:
    return max(report.quantile(1.0, lambda r: r.ttft_s) for report in reports)


def test_most_wait_far_less_and_nobody_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, ordered = ([served(name, seed) for seed in DRAWS] for name in ("fcfs", "priority"))
    means_s = [
        fmean(report.mean(lambda r: r.ttft_s) for report in each) for each in (usual, ordered)
    ]
    assert means_s[1] < 0.5 * means_s[0]
    assert longest_s(ordered) < 1.1 * longest_s(usual)
    monkeypatch.setattr(recall, "OVERTAKEN_PART", inf)  # the last stays last
    assert longest_s([served("priority", seed) for seed in DRAWS]) > 2 * longest_s(ordered)


def test_several_schedulers_serve_everybody() -> None:
    assert len(served("priority", 0, schedulers=3).served) == 600
