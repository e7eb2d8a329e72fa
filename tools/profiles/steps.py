"""A step time fitted to steps that an engine has made."""

from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from foretell.latency.features import features
from foretell.latency.importers.linear_fit import relative_fit
from foretell.latency.linear import LinearStepTime, StepTimeModel
from foretell.model import Step

_REFITS = 6
_OUTLIER = 3.0  # an error beyond this many median ones counts as that many (Huber)


def fit(steps: Sequence[Step]) -> LinearStepTime:
    """Six coefficients for `steps`: least squares of the error relative to the prediction.

    Refitted with the last fit's predictions, and with less weight for outliers. Errors relative to
    the actual times would almost ignore a stall, and be dominated by a step that was cut short.
    """
    x = np.array([features(step.shape) for step in steps])
    seconds = np.array([step.duration_s for step in steps])
    weights: Any = 1.0
    for _ in range(_REFITS):
        coefficients = relative_fit(x, seconds, weights)
        predicted = np.maximum(x @ np.array(coefficients), 1e-6)
        errors = np.abs(seconds - predicted) / predicted
        limit = max(1e-9, _OUTLIER * float(np.median(errors)))
        weights = seconds / predicted * np.sqrt(np.minimum(1.0, limit / np.maximum(errors, limit)))
    return LinearStepTime(coefficients)


def median_error(model: StepTimeModel, steps: Sequence[Step]) -> float:
    """The median of |predicted - actual| / actual over steps."""
    return median(abs(model.step_s(step.shape) / step.duration_s - 1.0) for step in steps)
