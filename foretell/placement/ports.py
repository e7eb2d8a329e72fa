"""The ports of placement: what the core asks for, and what carries out its effects.

The scheduler service and the simulator implement them, and so does the replay of recorded runs.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypedDict, Unpack

from foretell.model import Load, Prediction, RequestSpec
from foretell.placement import effects as do
from foretell.policy import Needs

if TYPE_CHECKING:  # configurations can be read without numpy
    from foretell.engine.hindsight import PredictionInputs


class Answer(NamedTuple):
    """What is known of one instance at the moment."""

    instance_id: str
    load: Load | None = None
    prediction: Prediction | None = None
    is_doubted: bool = False
    """There was a prediction, but it is not trusted and left out."""


class Predicted(NamedTuple):
    """What is known of some instances: an answer for each that has a fresh snapshot."""

    answers: Sequence[Answer] = ()
    took_s: float = 0.0
    """Seconds that predicting took, during which the scheduler did nothing else."""
    inputs: "PredictionInputs | None" = None
    """What the predictions were made from."""


class Wait(NamedTuple):
    """What is known of a request that was sent to an engine."""

    wait_s: float | None = None
    """Seconds until its first token; None if it does not wait or that is unknown."""
    begun: bool = False
    """Its engine has begun to compute it."""


class Wanted(TypedDict):
    """What predictions are to contain."""

    needs: Needs
    """`LOAD`: loads only; otherwise predictions, with added latencies if `needs.externality`."""
    with_quantiles: bool
    """Quantiles in addition to means."""
    single: bool
    """One rollout for each instance, because there is no time for more."""


class Predict(Protocol):
    """Predictions from the latest snapshots, without communication or waiting."""

    def predict(
        self,
        spec: RequestSpec,
        instance_ids: Sequence[str],
        now_s: float,
        **wanted: Unpack[Wanted],
    ) -> Predicted:
        """Predict what becomes of a request on each of the instances if it is dispatched now."""
        ...

    def predict_one(self, spec: RequestSpec, instance_id: str, now_s: float) -> Prediction | None:
        """Predict what becomes of a request that is about to be sent to the instance, counting
        later requests as expected: what clients are told. None if unknown or not needed."""
        ...

    def reserve(self, spec: RequestSpec, instance_id: str, now_s: float) -> None:
        """Count the request in predictions from now on: it is on its way to the instance."""
        ...

    def wait(self, spec: RequestSpec, instance_id: str, now_s: float) -> Wait:
        """Predict how long a request still waits in the queue of the engine it was sent to."""
        ...


class Send(Protocol):
    """Carries out the core's effects. It may report events to the driver while it does so."""

    def dispatch(self, effect: do.Dispatch) -> None:
        """Send the request to its engine."""
        ...

    def revise(self, effect: do.Revise) -> None:
        """Update the reservation of a request with a new length estimate."""
        ...

    def recall(self, effect: do.Recall) -> None:
        """Take the request back and report `Recalled`, or report `Started`."""
        ...

    def give_up(self, effect: do.GiveUp) -> None:
        """End the attempt, unless the client has a part of it that no engine can continue."""
        ...

    def refuse(self, effect: do.Refuse) -> None:
        """Answer the client with an error."""
        ...

    def degraded(self, effect: do.Degraded) -> None:
        """Count the predictions that a placement did not get."""
        ...
