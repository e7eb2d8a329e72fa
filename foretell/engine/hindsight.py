"""Predictions made again later, from what was known when a request was placed.

Snapshots are never changed, so prediction inputs are kept by reference.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from foretell.engine.forecast import Forecaster
from foretell.engine.predictor import EnginePredictor, predict
from foretell.engine.published import Snapshot
from foretell.engine.questions import ExpectedArrival
from foretell.engine.underway import Underway
from foretell.length.distribution import Row
from foretell.model import LengthEstimate, Prediction, RequestSpec


class Exposure(NamedTuple):
    """One engine as its follower knew it. Instants are of the follower's clock, except those in
    `snapshot`, to which `shift_s` must be added."""

    snapshot: Snapshot
    shift_s: float
    known_s: float
    """The snapshot shows all that happened until then."""
    announced: Sequence[ExpectedArrival]
    """The requests on their way to the engine."""


class PredictionInputs(NamedTuple):
    """The inputs of the predictions for one placement."""

    now_s: float
    exposures: Sequence[Exposure]
    answer_delays_s: Sequence[float]
    """Seconds from a token in each engine to the follower."""

    @property
    def instance_ids(self) -> list[str]:
        """The ids of the instances, in the order of `exposures`."""
        return [exposure.snapshot.instance_id for exposure in self.exposures]


LengthRow = Callable[[LengthEstimate], Row]


def replay(
    inputs: PredictionInputs,
    request: RequestSpec,
    length_row: LengthRow,
    cached_tokens: Sequence[int],
    *,
    idle: bool = False,
) -> list[Prediction]:
    """Predict `request` on each of the engines in `inputs`; without quantiles.

    `length_row` makes a distribution of its estimate (`foretell.length.distribution`), and
    `cached_tokens` are those of its prompt that were expected in each engine's prefix cache.
    `idle`: as if the engines had no other requests.
    """
    forecaster = Forecaster(len(inputs.exposures))
    asked = []
    for index, (exposure, delay_s, cached) in enumerate(
        zip(inputs.exposures, inputs.answer_delays_s, cached_tokens, strict=True)
    ):
        snapshot = exposure.snapshot
        announced = () if idle else exposure.announced
        predictor = EnginePredictor(
            forecaster,
            index,
            snapshot.instance_id,
            snapshot.config,
            Underway(announced, snapshot.dispatch_delay_s),
            snapshot.step_time,
        )
        predictor.cached_tokens = cached
        predictor.answer_delay_s = delay_s
        if not idle:
            rows = snapshot.header, snapshot.requests, snapshot.inputs
            forecaster.put(index, *rows, exposure.shift_s)
            forecaster.still_true(index, exposure.known_s)
        asked.append(predictor)
    return predict(
        forecaster,
        asked,
        request,
        length_row(request.length),
        at_s=inputs.now_s,
        now_s=inputs.now_s,
        ages_s=[0.0] * len(asked),
        announced_only=True,
        externality=not idle,
        with_quantiles=False,
    )


def of_length(request: RequestSpec, output_tokens: int) -> RequestSpec:
    """`request` with a certain length."""
    return request._replace(length=LengthEstimate(float(output_tokens), source="hint"))
