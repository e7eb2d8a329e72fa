"""The effects of calling requests back from engines' queues, in a whole cluster."""

from dataclasses import replace
from random import Random

from foretell.latency.linear import LinearStepTime
from foretell.model import EngineConfig, LengthEstimate
from foretell.policy.slo import SloPolicy
from foretell.sim import ClusterConfig, Fault, FaultKind, Report, SimInstanceConfig, simulate
from foretell.workload import Arrival, LogNormal, LogNormalLengths, poisson, stream

ENGINE = EngineConfig("small", 16, 64, 2, 64, 1024)
INSTANCE = SimInstanceConfig(ENGINE, LinearStepTime((0.050, 1e-4, 1e-9, 0.0, 1e-4, 1e-7)))
CONFIG = ClusterConfig(
    (INSTANCE,) * 3,
    estimate=lambda _: LengthEstimate(40.0),
    publish_interval_s=0.1,
    network_delay_s=0.001,
)
"""Six seats, with 50 ms a token; all length estimates are wrong."""
SEEDS = range(8)


def arrivals(seed: int) -> list[Arrival]:
    """As many requests as six seats can just serve."""
    draws = Random(seed)
    lengths = LogNormalLengths(LogNormal(16, 1.0, 64), LogNormal(40, 1.5, 400))
    return stream(80, poisson(2.6, draws), lengths, draws)


class Stays(SloPolicy):
    """Never moves a request to another engine."""

    late_binding = False


def run(config: ClusterConfig, seed: int, made: type[SloPolicy] = SloPolicy) -> Report:
    return simulate(config, arrivals(seed), [made()] * 2, Random(seed))


def test_waits_get_shorter_where_lengths_are_not_known() -> None:
    waits_s = {
        name: [run(CONFIG, seed, made).mean(lambda r: r.ttft_s) for seed in SEEDS]
        for name, made in (("recalled", SloPolicy), ("stays", Stays))
    }
    shorter = [a < b for a, b in zip(waits_s["recalled"], waits_s["stays"], strict=True)]
    assert sum(waits_s["recalled"]) < 0.95 * sum(waits_s["stays"])
    assert sum(shorter) >= len(SEEDS) - 2


def test_nobody_is_lost_or_served_twice_where_engines_die_meanwhile(seed: int) -> None:
    crashes = tuple(
        Fault(FaultKind.CRASH, index, at_s=5.0 + 4.0 * index, for_s=3.0) for index in range(3)
    )
    report = run(replace(CONFIG, faults=crashes), seed)
    assert len(report.served) + len(report.lost) == 80
