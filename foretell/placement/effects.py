"""The output of the placement core: effects that the driver carries out in order.

Nobody changes an effect; as events, they are not frozen.
"""

from dataclasses import dataclass, field
from typing import Literal

from foretell.model import Prediction, RequestSpec
from foretell.placement.decision import Decision
from foretell.policy.admission import Unattainable


@dataclass(slots=True)
class Recall:
    """Take a request back from its engine's queue and tell `events.Recalled`; or, where it has its
    first token by now, `events.Started`."""

    key: str
    instance_id: str


@dataclass(slots=True)
class GiveUp:
    """The engine has been silent for too long: end the attempt and tell `events.Failed`, unless
    something of the answer has come by now."""

    key: str


@dataclass(slots=True)
class WaitUntil:
    """Tell `events.TimePassed` at this time; a later one for the same request replaces it."""

    key: str
    at_s: float
    ticket: int


@dataclass(slots=True)
class Revise:
    """Tell the instance's predictor what was estimated since the request was dispatched."""

    key: str
    spec: RequestSpec
    instance_id: str


@dataclass(slots=True)
class Dispatch:
    """Send the request to this instance; then tell `events.Failed` or `events.Ended`, once."""

    key: str
    spec: RequestSpec
    """`request_id` is the attempt's own: what is told of an earlier attempt, late, must not touch
    this one's reservation. `slo` is what is left of the targets now."""
    instance_id: str
    prediction: Prediction | None
    """What is predicted there, with the requests that are to be expected later."""
    attempt: int
    """1 for the first."""
    decision: Decision | None = field(default=None, repr=False)
    """How it was chosen."""


RefusedBecause = Literal[
    "no_instance", "engine_failed", "retry_budget", "late", "over_share", "unfit"
]


@dataclass(slots=True)
class Refuse:
    """Answer the client with an error: the request has ended.

    `no_instance`: nobody who serves its model is up, or was in time. `engine_failed`: all attempts
    failed. `retry_budget`: an attempt failed, and too much is repeated already.
    `late`: no instance can begin to answer within the target, as `why` says. `over_share`: its
    tenant has more than its share already, and too many wait for that. `unfit`: every engine that
    might have served it says that it cannot.
    """

    key: str
    because: RefusedBecause
    why: Unattainable | None = None


@dataclass(slots=True)
class Degraded:
    """A placement does without predictions that it wanted; to be counted."""

    key: str
    missing: Literal["predictor", "budget", "accuracy"]
    count: int = 1


Effect = Recall | GiveUp | WaitUntil | Revise | Dispatch | Refuse | Degraded
