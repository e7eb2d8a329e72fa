"""The input of the placement core: events that happen to a scheduler.

`key` names a request within one scheduler; the driver chooses it and never uses it twice. Nobody
changes an event; they are not frozen because each request has some, and making a frozen one takes
three times as long.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from foretell.model import LengthEstimate, RequestSpec
from foretell.placement.needs import ANY, Need, Unfit
from foretell.policy.admission import Late


@dataclass(slots=True)
class Arrived:
    """A valid request has come and is to be placed.

    `spec.request_id` is the request's key. `spec.slo` counts from the arrival.
    """

    spec: RequestSpec
    model: str = ""
    late: Late = "serve"
    waited_s: float = 0.0
    """Seconds since the request reached this scheduler, its body's way included."""
    late_s: float = 0.0
    """Seconds by which this scheduler, being busy, is behind with everything."""
    among: frozenset[str] | None = None
    """The only instances that may get it; None: any."""
    recallable: bool = True
    """Whoever sends it to its engine could take it back from there."""
    whole: bool = False
    """Its answer comes in one piece: `Started` is not told of it."""
    foreseeable: bool = True
    """It generates tokens; otherwise it is placed by load, and nobody is told of it."""
    tenant: str = ""
    """Whose it is: the engines are shared between tenants (`foretell.placement.shares`)."""
    given_priority: int | None = None
    """The priority that every engine reads in the request; None: that of `spec`."""
    need: Need = ANY
    """What an engine must be able to do to serve it."""


@dataclass(slots=True)
class Estimated:
    """The length of a request is estimated again, with more effort than when it arrived."""

    key: str
    length: LengthEstimate


@dataclass(slots=True)
class TimePassed:
    """The time that `effects.WaitUntil` named has come."""

    key: str
    ticket: int
    """The ticket of the effect: a time that the request no longer waits for is ignored."""


@dataclass(slots=True)
class Started:
    """A dispatched request has its first token."""

    key: str
    goes_on: bool = False
    """Another engine could go on with its stream, should this one fall silent."""


@dataclass(slots=True)
class Recalled:
    """The engine of `effects.Recall` has nothing of the request any more, and computed nothing."""

    key: str


@dataclass(slots=True)
class Failed:
    """An attempt on an engine ended before the answer did: try another one."""

    key: str
    output_tokens: int = 0
    """Those of the answer that the client has: another engine computes them with the prompt."""
    unfit: Unfit = ""
    """The engine is well, and says that it cannot serve the request for this reason."""


@dataclass(slots=True)
class Ended:
    """The answer of a dispatched request has ended, well or badly; no attempt follows."""

    key: str
    broken: bool = False
    """Its engine broke off in mid-answer."""
    answered: bool = False
    """Its engine has answered; otherwise its client left."""


@dataclass(slots=True)
class Gone:
    """The client of a request that is not dispatched has left."""

    key: str


@dataclass(slots=True)
class InstanceUp:
    """An instance answers its health probe and may get requests; told at every probe."""

    instance_id: str
    models: frozenset[str] = frozenset({""})
    heard_s: float = -inf
    """When its engine last sent a byte of any answer."""
    worked_s: float = -inf
    """When its engine was last seen to have made a step."""
    lengths: Mapping[str, int] = field(default_factory=dict)
    """Longest context of its models in tokens, where it says so."""


@dataclass(slots=True)
class InstanceDown:
    """An instance no longer answers: nothing is placed there until it is up again."""

    instance_id: str


@dataclass(slots=True)
class InstanceDraining:
    """An instance is to end what it has and gets nothing new, even if it is up."""

    instance_id: str


@dataclass(slots=True)
class InstanceTakenBack:
    """An instance that was draining gets requests again, as far as it is up."""

    instance_id: str


@dataclass(slots=True)
class InstanceRemoved:
    """An instance no longer belongs to the cluster. Requests in progress there may still end."""

    instance_id: str


@dataclass(slots=True)
class InstanceFollowed:
    """There is a snapshot of an instance from now on, or no longer."""

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
