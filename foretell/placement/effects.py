"""The output of the placement core: effects that the driver carries out in order.

Effects are never changed after creation. Like events, they are not frozen.
"""

from dataclasses import dataclass, field
from typing import Literal

from foretell.model import Prediction, RequestSpec
from foretell.placement.decision import Decision
from foretell.policy.admission import Unattainable


@dataclass(slots=True)
class Recall:
    """Take a request back from its engine's queue and report `events.Recalled`; if it has its
    first token by now, report `events.Started` instead."""

    key: str
    instance_id: str


@dataclass(slots=True)
class GiveUp:
    """End an attempt whose engine has been silent for too long and report `events.Failed`, unless
    the client has received a part of the answer that no other engine can continue."""

    key: str


@dataclass(slots=True)
class WaitUntil:
    """Report `events.TimePassed` at this time; a later effect for the request replaces this."""

    key: str
    at_s: float
    ticket: int


@dataclass(slots=True)
class Revise:
    """Notify the instance's predictor of a new length estimate for a dispatched request."""

    key: str
    spec: RequestSpec
    instance_id: str


@dataclass(slots=True)
class Dispatch:
    """Send the request to this instance, then report `events.Failed` or `events.Ended` once."""

    key: str
    spec: RequestSpec
    """`request_id` is the attempt's own, so that a late message about an earlier attempt does not
    change this one's reservation. `slo` is what is left of the targets now."""
    instance_id: str
    prediction: Prediction | None
    """The prediction for this instance, which counts expected later requests if time allowed."""
    attempt: int
    """1 for the first."""
    decision: Decision | None = field(default=None, repr=False)
    """How it was chosen."""


RefusedBecause = Literal[
    "no_instance", "engine_failed", "retry_budget", "late", "over_share", "unfit"
]


@dataclass(slots=True)
class Refuse:
    """Answer the client with an error; the request has ended.

    `no_instance`: no instance that serves it is up, or came up in time. `engine_failed`: all
    attempts failed. `retry_budget`: an attempt failed, and the retry budget is exhausted. `late`:
    no instance can begin to answer within the target, as `why` says. `over_share`: its tenant is
    over its share, and too many requests wait for that reason. `unfit`: all engines that might
    have served it say that they cannot, or `needs.MOST_REFUSALS` of them.
    """

    key: str
    because: RefusedBecause
    why: Unattainable | None = None


@dataclass(slots=True)
class Degraded:
    """Count predictions that a placement needed but did not get."""

    key: str
    missing: Literal["predictor", "budget", "accuracy"]
    count: int = 1


Effect = Recall | GiveUp | WaitUntil | Revise | Dispatch | Refuse | Degraded
