"""Whole clusters whose engines serve the largest requests last."""

from dataclasses import replace
from math import inf
from random import Random

import pytest

from foretell.latency.linear import LinearStepTime
from foretell.model import EngineConfig
from foretell.placement import PlacementConfig
from foretell.policy import make_policy, order
from foretell.sim import ClusterConfig, InstanceConfig, Report, simulate
from foretell.workload import LogNormal, LogNormalLengths, poisson, stream

STEP_TIME = LinearStepTime((0.010, 1e-4, 1e-9, 0.0, 1e-4, 1e-7))
ENGINE = EngineConfig(
    model_name="m",
    block_size_tokens=16,
    total_blocks=120,
    max_num_seqs=16,
    max_num_scheduled_tokens=256,
    max_model_len=1024,
    policy="priority",
)
RATE = 44.0
"""Somewhat more than the two engines can do."""
LAST = PlacementConfig(largest_last_ratio=0.05)
CLUSTER = ClusterConfig((InstanceConfig(ENGINE, STEP_TIME),) * 2)


def served(config: ClusterConfig, seed: int, *, schedulers: int = 2) -> Report:
    lengths = LogNormalLengths(LogNormal(60, 1.0, 400), LogNormal(60, 1.0, 400))
    arrivals = stream(500, poisson(RATE, Random(seed)), lengths, Random(seed))
    policies = [make_policy("predicted_latency") for _ in range(schedulers)]
    return simulate(config, arrivals, policies, Random(seed))


def mean_ttft_s(report: Report) -> float:
    return report.mean(lambda r: r.ttft_s)


@pytest.mark.parametrize("draw", range(4))
def test_most_wait_less_and_everybody_is_served(draw: int) -> None:
    usual, ordered = (
        served(CLUSTER, draw),
        served(replace(CLUSTER, placement=LAST), draw),
    )
    assert len(usual.served) == len(ordered.served) == 500
    assert mean_ttft_s(ordered) < mean_ttft_s(usual)


def test_engines_that_serve_in_order_of_arrival_do_as_before() -> None:
    fcfs = InstanceConfig(replace(ENGINE, policy="fcfs"), STEP_TIME)
    config = replace(CLUSTER, instances=(fcfs,) * 2)
    usual = served(config, 1, schedulers=1)
    ordered = served(replace(config, placement=LAST), 1, schedulers=1)
    assert [r.ttft_s for r in ordered.served] == [r.ttft_s for r in usual.served]


def test_nobody_waits_much_longer_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is foretold of who would go last decides; those who come later add to it."""

    def longest_s(bound_s: float) -> float:
        monkeypatch.setattr(order, "LONGEST_WAIT_S", bound_s)
        return max(r.ttft_s for r in served(replace(CLUSTER, placement=LAST), 0).served)

    assert longest_s(0.5) < 0.75 * longest_s(inf)
