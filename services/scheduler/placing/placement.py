"""Where a request goes, and what was believed then."""

from collections.abc import Callable
from dataclasses import dataclass

from foretell.model import Prediction, RequestSpec
from foretell.placement.needs import ANY, Need
from foretell.services.scheduler.placing.pool import Instance
from foretell.services.scheduler.placing.stories import Chapter


@dataclass(slots=True, eq=False)
class Placement:
    """A decision, and what was believed when it was taken."""

    key: str
    instance: Instance
    spec: RequestSpec
    prediction: Prediction | None
    """The prediction by which the instance was chosen; soon after, the answer to `Reserve`."""
    policy: str
    attempt: int
    decided_unix_s: float
    took_s: float
    """To decide, the wait for its turn and the time in which it was held included."""
    tagged: bool = False
    """The tagger was asked about it."""
    take_back: Callable[[], bool] | None = None
    """Takes the request back from its engine, unless it has a token; whether it was. None before it
    is sent."""
    give_up: Callable[[], None] | None = None
    """Ends the attempt as failed, unless something has come with which no other could go on."""
    need: Need = ANY
    """What it needs of its engine."""
    model: str = ""
    """The model that it asks for."""
    chapter: Chapter | None = None
    """What is remembered of it."""

    def headers(self) -> dict[str, str]:
        """What clients are told of it."""
        headers = {
            "x-foretell-instance": self.instance.config.instance_id,
            "x-foretell-policy": self.policy,
        }
        prediction = self.prediction
        if prediction is not None:
            headers["x-foretell-predicted-ttft-s"] = f"{prediction.ttft_s:.4f}"
            headers["x-foretell-predicted-e2e-s"] = f"{prediction.e2e_s:.4f}"
            headers["x-foretell-calibration"] = _calibration(prediction)
        return headers


def _calibration(prediction: Prediction) -> str:
    """How many steps a prediction has learnt from, and what it does not model of the engine."""
    steps = f"{prediction.calibration_steps} steps"
    if not prediction.approximations:
        return steps
    return f"{steps}; not modelled: {', '.join(prediction.approximations)}"
