"""The contract of a placement policy: facts in, an instance out."""

from collections.abc import Sequence
from enum import Enum
from typing import ClassVar, NamedTuple, Protocol

from foretell.model import Load, Prediction, RequestSpec


class Needs(Enum):
    """The facts that predictors have to provide before a policy chooses."""

    NOTHING = "nothing"
    LOAD = "load"
    PREDICTION = "prediction"
    EXTERNALITY = "externality"
    """A prediction that says also what the request adds to the latencies of others."""

    @property
    def prediction(self) -> bool:
        """Whether predictors are asked for predictions."""
        return self not in (Needs.NOTHING, Needs.LOAD)

    @property
    def externality(self) -> bool:
        """Whether predictions must say what the request adds to the latencies of others."""
        return self is Needs.EXTERNALITY


class Candidate(NamedTuple):
    """One healthy instance as the scheduler knows it."""

    instance_id: str
    outstanding: int = 0
    """Requests of this scheduler in progress there."""
    dispatched_last_minute: int = 0
    """Requests this scheduler sent there within the last 60 s."""
    load: Load | None = None
    """None when the predictor did not answer and nothing recent is known."""
    prediction: Prediction | None = None
    """None when the predictor did not answer in time."""


class Policy(Protocol):
    """Deterministic given its own history and `draw`."""

    name: ClassVar[str]
    needs: ClassVar[Needs]
    late_binding: bool
    """Whether its choices are reviewed until a request begins: what waits in an engine's queue may
    be recalled, and what will miss its target makes way. It must need predictions."""

    def choose(self, request: RequestSpec, candidates: Sequence[Candidate], draw: float) -> str:
        """The `instance_id` to place `request` on.

        `candidates` is never empty; `draw` is uniform in [0, 1) and breaks ties.
        """
        ...


class Urgency(NamedTuple):
    """The order in which a scheduler places the requests that wait for it: the least first."""

    priority: int
    """The request's priority, by vLLM's rule: a lower number goes first."""
    arrived_s: float
