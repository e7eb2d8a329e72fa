"""A fixed number of instances."""

from typing import ClassVar

from foretell.provision.base import Proposal, StrategyPlan
from foretell.provision.facts import Facts


class Static:
    """Proposes `instances`, or the maximum if it is 0."""

    name: ClassVar[str] = "static"

    def __init__(self, *, instances: int = 0) -> None:
        self._instances = instances

    def propose(self, facts: Facts, plan: StrategyPlan) -> Proposal:
        return Proposal(self._instances or plan.maximum, "as configured")
