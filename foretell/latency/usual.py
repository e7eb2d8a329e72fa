"""The usual speed of an engine, as opposed to its recent speed."""

import math

import numpy as np
from numpy.typing import NDArray

from foretell.kernel import regression
from foretell.latency.phase import Phase

Vector = NDArray[np.float64]

_RATE = 1 / 64  # of the mean shape: about the last 64 steps
_MOST = 20.0  # limit of |log| of a phase, which keeps nonsense finite


class Usual:
    """The step times to which an engine returns after a phase, learnt like the main model.

    It learns from durations divided by the phase: the ratio of the main model to this one for the
    mean of recent shapes. The weight of a shape is 1 / (1 + r), with r the variance of its
    prediction in units of the noise, since what the main model learns about unknown shapes is no
    phase. Not thread-safe.
    """

    def __init__(self, theta: Vector, p: Vector, forgetting: float) -> None:
        """`theta`, `p` and `forgetting` of `kernel.regression`, before the first step."""
        self._theta, self._p = theta.copy(), p.copy()
        self._forgetting = forgetting
        self._shapes = np.zeros_like(theta)
        self._phase = Phase()

    def add(self, x: Vector, duration_s: float, believed: Vector, limit: float) -> None:
        """Learn from a step with the regressors `x` that took `duration_s`.

        `believed`: the main model's parameters. `limit`: the most relative error that teaches.
        """
        predicted_s = float(self._theta @ x)
        if predicted_s > 0.0:
            scaled = x / predicted_s
            variance = max(0.0, float(scaled @ self._p @ scaled))
            self._shapes += _RATE * (scaled / (1.0 + variance) - self._shapes)
            self._compare(believed, duration_s)
        usual_s = duration_s / math.exp(self._phase.log)
        longer_s = max(usual_s, abs(predicted_s))
        error = min(limit, max(-limit, (usual_s - predicted_s) / longer_s))
        regression.update(self._theta, self._p, x / longer_s, error, self._forgetting)

    def rest(self, seconds: float) -> float:
        """Note seconds without a step; returns the factor by which the expected time changes."""
        return math.exp(self._phase.rest(seconds))

    def _compare(self, believed: Vector, seconds: float) -> None:
        usual_s, now_s = float(self._theta @ self._shapes), float(believed @ self._shapes)
        if usual_s > 0.0 and now_s > 0.0:
            log = max(-_MOST, min(_MOST, math.log(now_s / usual_s)))
            factor = math.exp(self._phase.see(log, seconds))
            self._theta *= factor
            self._p *= factor * factor
