"""Clusters for the tests of provisioning."""

from foretell.engine import SnapshotPredictor
from foretell.engine.published import Snapshot
from foretell.latency.linear import StepTimeModel
from foretell.length.distribution import certain
from foretell.model import EngineSnapshot
from foretell.provision import Facts, InstanceFacts, InstancePhase, StrategyPlan


def published(state: EngineSnapshot, steps: StepTimeModel) -> Snapshot:
    """What the engine's predictor publishes in this state; all lengths are as predicted."""
    predictor = SnapshotPredictor(
        dispatch_delay_s=0.0,
        length_row=lambda found: certain(found.expected_tokens),
        prior_tokens=1.0,
    )
    predictor.hear(state)
    found = predictor.publish(steps, 0.0)
    assert found is not None
    return found


def ready(name: str, running: int = 0, waiting: int = 0, kv: float = 0.0) -> InstanceFacts:
    return InstanceFacts(name, InstancePhase.READY, 0.0, running, waiting, 10, kv)


def warming(name: str, since_s: float = 0.0) -> InstanceFacts:
    return InstanceFacts(name, InstancePhase.WARMING, since_s)


def draining(name: str, running: int = 1) -> InstanceFacts:
    return InstanceFacts(name, InstancePhase.DRAINING, 0.0, running, 0, 10)


def facts(now_s: float, *instances: InstanceFacts, **more: object) -> Facts:
    return Facts(now_s, instances, **more)  # type: ignore[arg-type]


def plan(instances: int, maximum: int = 8, cold_start_s: float = 60.0) -> StrategyPlan:
    return StrategyPlan(instances, 1, maximum, cold_start_s)
