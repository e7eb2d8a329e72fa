"""Kubernetes' horizontal autoscaler, as KEDA feeds it: a number of requests for each instance."""

from math import ceil
from typing import ClassVar

from foretell.provision.base import Proposal, StrategyPlan
from foretell.provision.facts import Facts, InstancePhase


class Target:
    """Proposes `ceil(ready * ratio)`, where `ratio` is requests in progress per ready instance over
    `requests`. Proposes no change while `ratio` is within `tolerance` of 1.

    The formula and the tolerance are those of the HorizontalPodAutoscaler; its stabilisation
    window is the core's cool-down.
    """

    name: ClassVar[str] = "target"

    def __init__(self, *, requests: float = 24.0, tolerance: float = 0.1) -> None:
        if requests <= 0 or tolerance < 0:
            raise ValueError("requests must be positive and tolerance not negative")
        self._requests = requests
        self._tolerance = tolerance

    def propose(self, facts: Facts, plan: StrategyPlan) -> Proposal:
        ready = len(facts.in_phase(InstancePhase.READY))
        why = f"{facts.requests} requests in progress, {self._requests:g} an instance wanted"
        if ready == 0:
            return Proposal(max(plan.instances, ceil(facts.requests / self._requests)), why)
        ratio = facts.requests / ready / self._requests
        if abs(ratio - 1.0) <= self._tolerance:
            return Proposal(plan.instances, why)
        return Proposal(ceil(ready * ratio), why)
