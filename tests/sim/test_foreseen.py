"""What `foreseen` does in a whole cluster: it holds where lengths are believed, and only there."""

from dataclasses import replace
from random import Random

from foretell.latency.linear import LinearStepTime
from foretell.model import EngineConfig, LengthEstimate
from foretell.placement import PlacementConfig
from foretell.policy import make_policy
from foretell.sim import ClusterConfig, InstanceConfig, Report, simulate
from foretell.workload import Arrival, LogNormal, LogNormalLengths, poisson, stream

ENGINE = EngineConfig("small", 16, 64, 2, 64, 1024)
INSTANCE = InstanceConfig(ENGINE, LinearStepTime((0.050, 1e-4, 1e-9, 0.0, 1e-4, 1e-7)))
CONFIG = ClusterConfig((INSTANCE,) * 3, placement=PlacementConfig(recall=False))
"""Six seats, of 50 ms a token; what was placed stays."""
BELIEVED = replace(CONFIG, estimate=lambda _: LengthEstimate(40.0))
HOLD_MAX_S = CONFIG.placement.hold_max_s


def arrivals() -> list[Arrival]:
    """Somewhat more than six seats can serve."""
    draws = Random(1)
    lengths = LogNormalLengths(LogNormal(16, 1.0, 64), LogNormal(40, 1.0, 200))
    return stream(40, poisson(4.0, draws), lengths, draws)


def run(config: ClusterConfig, policy: str) -> Report:
    return simulate(config, arrivals(), [make_policy(policy)], Random(1))


def test_with_certain_lengths_it_is_externality() -> None:
    served = [
        [replace(request, predicted=None) for request in run(CONFIG, policy).served]
        for policy in ("foreseen", "externality")
    ]
    assert served[0] == served[1]


def test_with_believed_lengths_it_holds_within_its_bound() -> None:
    report = run(BELIEVED, "foreseen")
    held_s = [request.placed_s - request.arrival_s for request in report.served]
    assert len(report.served) == 40
    assert sum(seconds > 0.5 for seconds in held_s) > 5
    assert max(held_s) < HOLD_MAX_S + 1.0
    at_once = run(BELIEVED, "externality")
    assert max(request.placed_s - request.arrival_s for request in at_once.served) < 0.01


def test_nobody_is_held_where_there_is_room() -> None:
    roomy = replace(CONFIG, instances=(INSTANCE,) * 40, estimate=BELIEVED.estimate)
    report = run(roomy, "foreseen")
    assert all(request.placed_s == request.arrival_s for request in report.served)
