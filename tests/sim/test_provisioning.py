"""Simulated clusters whose instances come and go: nothing is lost or cut, and bounds are kept."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from foretell.latency.linear import LinearStepTime
from foretell.placement import PlacementConfig
from foretell.policy import make_policy
from foretell.provision import Facts, Proposal, ProvisionConfig, StrategyPlan
from foretell.provision.strategies import STRATEGIES, make_strategy
from foretell.sim import ClusterConfig, Provisioning, Report, SimInstanceConfig, simulate
from foretell.workload import Arrival, LogNormal, LogNormalLengths, gamma, stream
from tests.sim.test_cluster import STEP_TIME, small_engine, with_blocks
from tests.sweeps import cases

QUICK = {
    "relief": {"threshold_s": 2.0, "pause_s": 1.0, "calm_ratio": 0.5, "calm_s": 2.0},
    "preempt": {"threshold_s": 2.0, "pause_s": 1.0, "calm_ratio": 0.5, "calm_s": 2.0},
    "target": {"requests": 3.0},
    "static": {"instances": 2},
}
WAITS = PlacementConfig(instance_wait_s=600.0)


def tides(draws: Random) -> list[Arrival]:
    """Bursts with nothing in between, with ids in order."""
    lengths = LogNormalLengths(LogNormal(16, 1.0, 64), LogNormal(36, 1.0, 64))
    found: list[Arrival] = []
    for burst in range(4):
        at_s = burst * draws.uniform(8.0, 20.0) + (found[-1].t_s if found else 0.0)
        times = (at_s + t for t in gamma(draws.choice([4.0, 20.0]), 2.0, draws))
        found += stream(24, times, lengths, draws, prefix=f"b{burst}-")
    return found


def provisioned(seed: int, strategy: str) -> tuple[ClusterConfig, list[Arrival]]:
    draws = Random(f"provisioning {seed}")
    engine = with_blocks(small_engine(draws), draws.randint(128, 200))
    minimum = draws.choice([0, 1, 2])
    config = ProvisionConfig(
        minimum=minimum,
        maximum=draws.randint(2, 4),
        cool_down_s=draws.choice([0.0, 3.0, 10.0]),
        cold_start_s=5.0,
        give_up_s=12.0,
    )
    provisioning = Provisioning(
        lambda: make_strategy(strategy, **QUICK.get(strategy, {})),
        config,
        initial=draws.randint(minimum, config.maximum),
        cold_start_s=draws.choice([0.5, 4.0, 11.0]),
        every_s=1.0,
        never_ready=frozenset(draws.sample(range(8), draws.choice([0, 2]))),
    )
    places = (SimInstanceConfig(engine, STEP_TIME),) * (config.maximum + 1)
    cluster = ClusterConfig(places, provisioning=provisioning, placement=WAITS)
    return cluster, tides(draws)


def run(seed: int, strategy: str) -> Report:
    config, arrivals = provisioned(seed, strategy)
    policy = "slo" if strategy == "preempt" else "least_outstanding"
    return simulate(config, arrivals, [make_policy(policy)], Random(seed))


SEEDS = range(14)


@pytest.mark.sweep
@pytest.mark.parametrize("of", SEEDS[: cases(14, 4)])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nothing_is_lost_and_bounds_are_kept(of: int, strategy: str) -> None:
    report, (config, arrivals) = run(of, strategy), provisioned(of, strategy)
    assert [r.request_id for r in report.served] == [a.request_id for a in arrivals]
    assert config.provisioning is not None
    bounds = config.provisioning.config
    for decision in report.decisions:
        assert bounds.minimum <= decision.desired <= bounds.maximum
        assert decision.why
    for size in report.sizes:
        assert size.warming + size.ready <= bounds.maximum
        assert size.instances <= len(config.instances)


def test_the_sweep_starts_and_drains() -> None:
    reports = [run(seed, "target") for seed in SEEDS]
    assert sum(any(d.start for d in r.decisions) for r in reports) >= 5
    assert sum(any(d.drain for d in r.decisions) for r in reports) >= 5
    assert sum(any(s.draining for s in r.sizes) for r in reports) >= 3


def test_the_same_seed_gives_the_same_decisions() -> None:
    assert run(3, "target") == run(3, "target")


def test_a_ready_instance_stays_until_one_less_was_wanted_for_the_cool_down() -> None:
    config, arrivals = provisioned(0, "static")
    assert config.provisioning is not None
    bounds = replace(config.provisioning.config, cool_down_s=20.0, minimum=1, maximum=4)
    many = replace(config.provisioning, config=bounds, initial=4, never_ready=frozenset())
    policies = [make_policy("least_outstanding")]
    report = simulate(replace(config, provisioning=many), arrivals, policies, Random(0))
    began_s = report.decisions[0].at_s
    (drained,) = (d for d in report.decisions if d.drain)
    assert drained.at_s - began_s == 21.0
    assert len(drained.drain) == 2


def test_an_engine_that_never_gets_ready_is_replaced() -> None:
    config, arrivals = provisioned(0, "static")
    assert config.provisioning is not None
    bounds = replace(config.provisioning.config, minimum=2, maximum=2)
    two = replace(
        config.provisioning, config=bounds, initial=1, cold_start_s=4.0, never_ready=frozenset({0})
    )
    policies = [make_policy("least_outstanding")]
    report = simulate(replace(config, provisioning=two), arrivals, policies, Random(0))
    (given_up,) = (d for d in report.decisions if d.stop)
    assert given_up.because == "stuck"
    assert report.sizes[-1].ready == 2


def test_from_nothing_the_first_request_waits_for_an_engine_and_is_served() -> None:
    config, _ = provisioned(0, "target")
    assert config.provisioning is not None
    bounds = replace(config.provisioning.config, minimum=0, maximum=2, cool_down_s=5.0)
    nothing = Provisioning(
        lambda: make_strategy("target", requests=3.0), bounds, 0, cold_start_s=7.0, every_s=1.0
    )
    arrivals = [Arrival(t_s, 8, 8, f"r{t_s:g}") for t_s in (0.5, 100.0)]
    cluster = replace(config, provisioning=nothing)
    report = simulate(cluster, arrivals, [make_policy("least_outstanding")], Random(0))
    assert [7.0 < r.ttft_s < 9.0 for r in report.served] == [True, True]
    assert {size.instances for size in report.sizes} == {0, 1}
    assert report.instance_s < 30.0
    assert all(a.at_s <= b.at_s for a, b in pairwise(report.sizes))


def test_what_drains_when_more_is_wanted_is_taken_back_at_once() -> None:
    """Two instances with a request each; one is drained, and wanted again before it is empty."""

    class Wavering:
        name = "wavering"

        def propose(self, facts: Facts, plan: StrategyPlan) -> Proposal:
            return Proposal(1 if 2.0 <= facts.now_s < 4.0 else 2, "the test")

    config, _ = provisioned(0, "static")
    bounds = ProvisionConfig(minimum=1, maximum=2, cool_down_s=0.0, cold_start_s=50.0)
    two = Provisioning(Wavering, bounds, 2, cold_start_s=50.0, every_s=1.0)
    # The answers are long, so neither instance becomes empty meanwhile.
    first = [Arrival(0.1, 8, 60, f"a{i}") for i in range(2)]
    later = [Arrival(4.5, 8, 60, f"b{i}") for i in range(2)]
    slow = replace(config.instances[0], step_time=LinearStepTime((0.2, 0.0, 0.0, 0.0, 0.0, 0.0)))
    cluster = replace(config, instances=(slow,) * 2, provisioning=two)
    report = simulate(cluster, [*first, *later], [make_policy("least_outstanding")], Random(0))
    (drained,) = (d for d in report.decisions if d.drain)
    (back,) = (d for d in report.decisions if d.take_back)
    assert back.take_back == drained.drain
    assert not any(d.start for d in report.decisions)
    assert len({r.instance_id for r in report.served if r.request_id.startswith("b")}) == 2
    assert report.sizes[-1].ready == 2
