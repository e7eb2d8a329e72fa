"""Clusters for the tests of provisioning."""

from pathlib import Path

from foretell.latency.linear import LinearStepTime
from foretell.model import EngineConfig
from foretell.provision import AnsweredRequest, Decision, Facts, InstanceFacts, Phase, StrategyPlan
from foretell.provision.rollout import EngineKind
from foretell.services.provisioner.record import DecisionRecord, RecordedTargets

KIND = EngineKind(
    EngineConfig("model", 16, 400, 4, 256, 1024),
    LinearStepTime((0.05, 0.0, 0.0, 0.0, 0.0, 0.0)).packed(),
)
TARGETS = RecordedTargets(1.0, 0.1, 0.99)
ANSWER = AnsweredRequest(50, 25.0, 20, 0.5, 1.45)


def ready(name: str, running: int = 0, waiting: int = 0, kv: float = 0.0) -> InstanceFacts:
    return InstanceFacts(name, Phase.READY, 0.0, running, waiting, 10, kv)


def warming(name: str, since_s: float = 0.0) -> InstanceFacts:
    return InstanceFacts(name, Phase.WARMING, since_s)


def draining(name: str, running: int = 1) -> InstanceFacts:
    return InstanceFacts(name, Phase.DRAINING, 0.0, running, 0, 10)


def facts(now_s: float, *instances: InstanceFacts, **more: object) -> Facts:
    return Facts(now_s, instances, **more)  # type: ignore[arg-type]


def plan(instances: int, maximum: int = 8, cold_start_s: float = 60.0) -> StrategyPlan:
    return StrategyPlan(instances, 1, maximum, cold_start_s)


def decision(at_s: float) -> Decision:
    return Decision(
        at_s, 2, "strategy", "for a test", 0.9, 0.0, forecast=0.3, cold_start_s=60.0, within=1.0
    )


def recorded(folder: Path, begins_s: float, ends_s: float) -> DecisionRecord:
    """A decision and two requests every ten seconds, on two instances."""
    found = DecisionRecord(folder, TARGETS)
    at_s = begins_s
    while at_s <= ends_s:
        seen = facts(at_s, ready("a"), ready("b"), arrived=2, answered=(ANSWER, ANSWER))
        found.add(seen, decision(at_s), 1)
        at_s += 10.0
    found.keep_engine(KIND, at_s)
    return found
