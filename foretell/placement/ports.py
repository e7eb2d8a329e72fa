"""The ports of placement: what the core asks, and what its driver needs of the world around it.

The scheduler service and the simulator implement them; a recorded run is replayed through them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypedDict, Unpack

from foretell.model import Load, Prediction, RequestSpec
from foretell.placement import effects as do
from foretell.policy import Needs

if TYPE_CHECKING:  # for who has no numpy, and only reads a configuration
    from foretell.engine.hindsight import PredictionInputs


class Answer(NamedTuple):
    """What is known of one instance now."""

    instance_id: str
    load: Load | None = None
    prediction: Prediction | None = None
    is_doubted: bool = False
    """There was a prediction, which cannot be trusted."""


class Predicted(NamedTuple):
    """What is known of some instances, as far as there is a snapshot that may be believed."""

    answers: Sequence[Answer] = ()
    took_s: float = 0.0
    """Seconds that predicting kept the scheduler from its other work."""
    inputs: "PredictionInputs | None" = None
    """What the predictions were made from."""


class Wait(NamedTuple):
    """What is known of a request that was sent to an engine."""

    wait_s: float | None = None
    """Seconds until its first token; None where it does not wait or nobody knows."""
    begun: bool = False
    """Its engine computes it."""


class Wanted(TypedDict):
    """What is wanted of predictions."""

    needs: Needs
    """`LOAD`: loads alone; otherwise a prediction with what `needs.externality` says."""
    with_quantiles: bool
    """Quantiles beside means."""
    single: bool
    """There is no time for more than one rollout each."""


class Predict(Protocol):
    """Predictions from the latest snapshots; nobody is asked and nobody waits."""

    def predict(
        self,
        spec: RequestSpec,
        instance_ids: Sequence[str],
        now_s: float,
        **wanted: Unpack[Wanted],
    ) -> Predicted:
        """What becomes of a request on each of the instances, if it is dispatched now."""
        ...

    def predict_one(self, spec: RequestSpec, instance_id: str, now_s: float) -> Prediction | None:
        """What becomes of a request that is about to be sent to the instance, with those that are
        to be expected later: what clients are told. None where nobody knows or wants it."""
        ...

    def reserve(self, spec: RequestSpec, instance_id: str, now_s: float) -> None:
        """The request is on its way to the instance: predictions count it from now on."""
        ...

    def wait(self, spec: RequestSpec, instance_id: str, now_s: float) -> Wait:
        """How long a request still waits in the queue of the engine that it was sent to."""
        ...


class Send(Protocol):
    """Carries out what the core decides; what it makes known at once, it tells the driver."""

    def dispatch(self, effect: do.Dispatch) -> None:
        """Send the request to its engine."""
        ...

    def revise(self, effect: do.Revise) -> None:
        """Note what else is known of a request that was reserved."""
        ...

    def recall(self, effect: do.Recall) -> None:
        """Take the request back, and tell `Recalled` or `Started`."""
        ...

    def give_up(self, effect: do.GiveUp) -> None:
        """End the attempt, unless something of its answer has come."""
        ...

    def refuse(self, effect: do.Refuse) -> None:
        """The request has ended without having been served."""
        ...

    def degraded(self, effect: do.Degraded) -> None:
        """Count what a placement had to do without."""
        ...
