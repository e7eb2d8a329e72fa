"""The input of the placement core: events that happen to a scheduler.

`key` names a request within one scheduler; its sender chooses it and never reuses it. Events are
never changed after creation. They are not frozen dataclasses, because creating a frozen one takes
three times as long and every request has several.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from foretell.model import LengthEstimate, RequestSpec
from foretell.placement.needs import ANY, Need, Unfit
from foretell.policy.admission import Late


@dataclass(slots=True)
class Arrived:
    """A valid request has arrived and is to be placed.

    `spec.request_id` is the request's key. The targets in `spec.slo` count from the arrival.
    """

    spec: RequestSpec
    model: str = ""
    late: Late = "serve"
    waited_s: float = 0.0
    """Seconds since the request reached this scheduler, the transfer of its body included."""
    late_s: float = 0.0
    """Seconds by which timers of this scheduler run late: above 0 when it is busy."""
    among: frozenset[str] | None = None
    """The ids of the only instances that may get it; None: any."""
    recallable: bool = True
    """Whether its sender can take it back from an engine's queue."""
    whole: bool = False
    """Whether its answer comes in one piece; there is no `Started` event then."""
    foreseeable: bool = True
    """Whether it generates tokens; otherwise it is placed by load, without a reservation."""
    tenant: str = ""
    """Its sender; tenants share the engines fairly (`foretell.placement.shares`)."""
    given_priority: int | None = None
    """The priority that every engine reads in the request itself; None: that of `spec`."""
    need: Need = ANY
    """What an engine must be able to do to serve it."""


@dataclass(slots=True)
class Estimated:
    """The length of a request has been estimated again, with more effort than at its arrival."""

    key: str
    length: LengthEstimate


@dataclass(slots=True)
class TimePassed:
    """The time of an `effects.WaitUntil` has come."""

    key: str
    ticket: int
    """The ticket of that effect; the event is ignored if the request no longer waits for it."""


@dataclass(slots=True)
class Started:
    """A dispatched request has its first token."""

    key: str
    goes_on: bool = False
    """Whether another engine could continue its stream if this one falls silent."""


@dataclass(slots=True)
class Recalled:
    """The request of `effects.Recall` has left its engine, which computed nothing of it."""

    key: str


@dataclass(slots=True)
class Failed:
    """An attempt failed before its answer was complete; another instance is to be tried."""

    key: str
    output_tokens: int = 0
    """Tokens of the answer that the client has; the next engine computes them with the prompt."""
    unfit: Unfit = ""
    """Why the engine, though healthy, says that it cannot serve the request; "": it failed."""


@dataclass(slots=True)
class Ended:
    """A dispatched request has ended, successfully or not; no attempt follows."""

    key: str
    broken: bool = False
    """Its engine failed in the middle of the answer."""
    answered: bool = False
    """Its engine has answered; False if its client left."""


@dataclass(slots=True)
class Gone:
    """The client of a request that is not dispatched has disconnected."""

    key: str


@dataclass(slots=True)
class InstanceUp:
    """An instance has answered a health probe and may get requests; sent at every probe."""

    instance_id: str
    models: frozenset[str] = frozenset({""})
    heard_s: float = -inf
    """When its engine last sent a byte of any answer."""
    worked_s: float = -inf
    """When its engine was last known to have run a step."""
    lengths: Mapping[str, int] = field(default_factory=dict)
    """Longest context of each model in tokens, if the engine states it."""


@dataclass(slots=True)
class InstanceDown:
    """An instance no longer answers; nothing is placed there until it is up again."""

    instance_id: str


@dataclass(slots=True)
class InstanceDraining:
    """An instance is to finish its requests and gets no new ones, even if it is up."""

    instance_id: str


@dataclass(slots=True)
class InstanceTakenBack:
    """An instance no longer drains and gets requests again while it is up."""

    instance_id: str


@dataclass(slots=True)
class InstanceRemoved:
    """An instance no longer belongs to the cluster. Requests in progress there may still end."""

    instance_id: str


@dataclass(slots=True)
class InstanceFollowed:
    """This scheduler now has snapshots of an instance, or no longer has any."""

    instance_id: str
    followed: bool = True


Event = (
    Arrived
    | Estimated
    | Started
    | Recalled
    | TimePassed
    | Failed
    | Ended
    | Gone
    | InstanceUp
    | InstanceDown
    | InstanceDraining
    | InstanceTakenBack
    | InstanceRemoved
    | InstanceFollowed
)
