"""Step times, learnt in the engine from its own steps."""

from typing import Any

from foretell.kernel.step_time import StepTime
from foretell.latency.calibration import OnlineStepTime
from foretell.model import BatchShape
from foretell.services.backend.vllm.shape import batch_shape
from foretell.services.backend.vllm.steps import Instant, StepTracker

_LEARN_EVERY = 8
"""While there are no offline requests, step times are learnt from one of so many steps."""


class CalibratedStepTimes:
    """The calibrated model of the predictors, fed by one scheduler."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._steps = StepTracker()
        self._completed = 0
        self._model = OnlineStepTime()

    def step_s(self, shape: BatchShape) -> float:
        """Seconds that a step of `shape` would take."""
        return self._model.current().step_s(shape)

    def packed(self) -> StepTime:
        """The model as of now, for compiled code."""
        return self._model.packed()

    def scheduled(self, output: Any, started: Instant) -> None:
        """`schedule()` has returned `output`."""
        shape = batch_shape(output.num_scheduled_tokens, self._scheduler.requests)
        self._steps.scheduled(output, shape, started)

    def updating(self, output: Any, started: Instant, *, every_step: bool) -> None:
        """`update_from_output()` is about to apply `output`; learn from `every_step`, or some."""
        self._steps.updating(output, started)
        for step in self._steps.take_completed():
            self._completed += 1
            if every_step or self._completed % _LEARN_EVERY == 0:
                self._model.observe(step.shape, step.duration_s)

    def updated(self, *, work_left: bool) -> None:
        """`update_from_output()` has returned; `work_left`: a request runs or waits."""
        self._steps.updated(work_left=work_left)
