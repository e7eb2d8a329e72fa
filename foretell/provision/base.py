"""The contract of a provisioning strategy: facts in, a number of instances out."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from foretell.provision.facts import Facts


class StrategyPlan(NamedTuple):
    """What the core knows besides the facts."""

    instances: int
    """Instances that are warming or ready."""
    minimum: int
    maximum: int
    cold_start_s: float
    """Seconds from asking for an instance until it is ready, the P90 of those measured."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a strategy wants; the core applies bounds and cool-down."""

    instances: int
    why: str
    """The numbers that decided, for people to read."""
    confidence: float | None = None
    """The probability that this number keeps the targets; None: the strategy does not say."""
    arrivals_per_s: float | None = None
    """Requests per second expected after a cold start's time; None: there is no forecast."""
    within: float | None = None
    """The ratio of requests that the strategy expects within their targets, at least; None: it does
    not say."""


class Strategy(Protocol):
    """Deterministic given its own history. Parameters are keyword-only arguments of its
    constructor."""

    name: ClassVar[str]

    def propose(self, facts: Facts, plan: StrategyPlan) -> Proposal:
        """Propose a number of instances. Called once for each `Facts`, in their order."""
        ...
