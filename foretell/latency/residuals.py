"""The error of a step-time model, over one step and over runs of steps."""

import math

WINDOW_STEPS = 64
"""Steps of a window. Within it the model is frozen, as it is in a forecast."""

_RATE = 1 / 16  # of the means over windows: about the last 16
_LEARNING_STEPS = 32  # the first steps teach the model; their errors do not count
_COMMON, _INDEPENDENT = 0.1, 0.1  # a prior with the weight of one window
_LEAST_SHARE = 0.1  # lower bound of 1 - h, for windows that one step dominates


def spread(variances: tuple[float, float], steps: int) -> float:
    """Standard deviation of the time of the next `steps` steps, relative to the prediction.

    `variances` are `StepResiduals.variances`.
    """
    common2, independent2 = variances
    return math.sqrt(common2 + independent2 / max(1, steps))


class StepResiduals:
    """Errors of a model that learns, seen step by step. Not thread-safe.

    The error of a run of n steps is assumed to have a part that all steps share and a part that is
    independent for each step: relative variance `common² + independent² / n`. Both are estimated
    over windows of `WINDOW_STEPS` with the model as it was when the window began. With predictions
    p and actual times a, R = sum(a - p) / sum(p), q = sum((a - p)²) / sum(p)² and
    h = sum(p²) / sum(p)² of a window, the expectations are

        E[R²] = common² + independent part of the sum
        E[q]  = h common² + independent part of the sum

    so that common² = E[R² - q] / (1 - h), and the rest of R² is the independent part of
    `WINDOW_STEPS` steps. The common part is whatever outlasts a window: an error of the model for
    the current traffic, a neighbour on the machine, a change of speed.
    """

    def __init__(self, prior_error: float) -> None:
        """`prior_error`: the relative error that is assumed before the first window has ended."""
        self._prior_error = min(1.0, prior_error)
        self._steps = 0
        self._windows = 0
        self._common2, self._independent2 = _COMMON**2, _INDEPENDENT**2
        self._run2 = _COMMON**2 + _INDEPENDENT**2 / WINDOW_STEPS  # E[R²]
        self._parts2 = (_COMMON**2 + _INDEPENDENT**2) / WINDOW_STEPS  # E[q]
        self._h = 1 / WINDOW_STEPS
        self._begin()

    def add(self, frozen_s: float, actual_s: float) -> bool:
        """Note that a step took `actual_s`, and `frozen_s` by the window's frozen model.

        Returns True if a window has ended: then the caller freezes the current model.
        """
        self._steps += 1
        if self._steps <= _LEARNING_STEPS:
            return self._steps == _LEARNING_STEPS
        error = actual_s - frozen_s
        self._count += 1
        self._predicted += frozen_s
        self._predicted2 += frozen_s * frozen_s
        self._error += error
        self._error2 += error * error
        if self._count < WINDOW_STEPS:
            return False
        self._end()
        self._begin()
        return True

    @property
    def variances(self) -> tuple[float, float]:
        """Relative variances: common² and independent².

        Before the first window has ended, common is the prior error.
        """
        common2 = self._common2 if self._windows else self._prior_error**2
        return common2, self._independent2

    def _begin(self) -> None:
        self._count = 0
        self._predicted = self._predicted2 = self._error = self._error2 = 0.0

    def _end(self) -> None:
        total2 = self._predicted**2
        run2, parts2, h = self._error**2 / total2, self._error2 / total2, self._predicted2 / total2
        if run2 > 1.0:  # limited, as the machine may have been suspended
            run2, parts2 = 1.0, parts2 / run2
        self._windows += 1
        rate = max(_RATE, 1.0 / (self._windows + 1))
        self._run2 += rate * (run2 - self._run2)
        self._parts2 += rate * (parts2 - self._parts2)
        self._h += rate * (h - self._h)
        common2 = (self._run2 - self._parts2) / max(_LEAST_SHARE, 1.0 - self._h)
        self._common2 = min(self._run2, max(0.0, common2))
        self._independent2 = (self._run2 - self._common2) * WINDOW_STEPS
