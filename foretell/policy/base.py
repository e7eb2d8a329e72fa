"""The interface of a placement policy: facts in, an instance out."""

from collections.abc import Sequence
from enum import Enum
from typing import ClassVar, NamedTuple, Protocol

from foretell.model import Load, Prediction, RequestSpec


class Needs(Enum):
    """The facts that a policy needs from snapshots before it chooses."""

    NOTHING = "nothing"
    LOAD = "load"
    PREDICTION = "prediction"
    EXTERNALITY = "externality"
    """A prediction that includes what the request adds to the latencies of others."""

    @property
    def prediction(self) -> bool:
        """Whether predictions are needed."""
        return self not in (Needs.NOTHING, Needs.LOAD)

    @property
    def externality(self) -> bool:
        """Whether predictions must include what the request adds to the latencies of others."""
        return self is Needs.EXTERNALITY


class Candidate(NamedTuple):
    """One healthy instance as the scheduler knows it."""

    instance_id: str
    outstanding: int = 0
    """Requests of this scheduler in progress there."""
    dispatched_last_minute: int = 0
    """Requests this scheduler sent there within the last 60 s."""
    load: Load | None = None
    """None if no recent load is known."""
    prediction: Prediction | None = None
    """None if nothing was predicted, or the prediction is not trusted."""


class Policy(Protocol):
    """A placement policy. Deterministic given its own history and `draw`."""

    name: ClassVar[str]
    needs: ClassVar[Needs]
    late_binding: bool
    """Whether its choices are reviewed until a request begins: requests in an engine's queue may be
    recalled, and those that will probably be late yield. Such a policy must need predictions."""

    def choose(self, request: RequestSpec, candidates: Sequence[Candidate], draw: float) -> str:
        """Return the `instance_id` to place `request` on.

        `candidates` is never empty; `draw` is uniform in [0, 1) and breaks ties.
        """
        ...


class Urgency(NamedTuple):
    """The order in which a scheduler places its waiting requests: the least first."""

    priority: int
    """The request's priority; as in vLLM, a lower number goes first."""
    arrived_s: float
