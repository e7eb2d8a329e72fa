"""How far off a step-time model is, over one step and over runs of steps."""

import math

WINDOW_STEPS = 64
"""Steps of a window, over which the model is held still as a forecast holds it."""

_RATE = 1 / 16  # of the means over windows: about the last 16
_LEARNING_STEPS = 32  # the first steps of all teach the model; their errors are not its errors
_COMMON, _INDEPENDENT = 0.1, 0.1  # assumed as of one window, before there are many
_LEAST_SHARE = 0.1  # of 1 - h: where one step is nearly all of a window nothing is known


def spread(variances: tuple[float, float], steps: int) -> float:
    """Standard deviation of the time of `steps` steps to come, as a ratio of what is predicted.

    `variances` as `Residuals.variances`.
    """
    common2, independent2 = variances
    return math.sqrt(common2 + independent2 / max(1, steps))


class StepResiduals:
    """Errors of a model that learns, seen step by step. Not thread-safe.

    The time of a run of n steps is taken to be off by a part that all its steps share and a part
    that each step draws anew: relative variance `common² + independent² / n`. Both are estimated
    over windows of `WINDOW_STEPS` with the model as it was at their begin. With predictions p and
    actual times a, R = sum(a - p) / sum(p), q = sum((a - p)²) / sum(p)² and h = sum(p²) / sum(p)²
    of a window, the expectations are

        E[R²] = common² + independent part of the sum
        E[q]  = h common² + independent part of the sum

    so that common² = E[R² - q] / (1 - h), and the rest of R² is the independent part of
    `WINDOW_STEPS` steps. The common part holds whatever outlasts a window: what the model gets
    wrong for the traffic of the moment, a neighbour on the machine, a change of speed.
    """

    def __init__(self, prior_error: float) -> None:
        """`prior_error`: how wrong the model may be before it has learnt, as a ratio."""
        self._prior_error = min(1.0, prior_error)
        self._steps = 0
        self._windows = 0
        self._common2, self._independent2 = _COMMON**2, _INDEPENDENT**2
        self._run2 = _COMMON**2 + _INDEPENDENT**2 / WINDOW_STEPS  # E[R²]
        self._parts2 = (_COMMON**2 + _INDEPENDENT**2) / WINDOW_STEPS  # E[q]
        self._h = 1 / WINDOW_STEPS
        self._begin()

    def add(self, frozen_s: float, actual_s: float) -> bool:
        """A step took `actual_s`; `frozen_s` is what the model of the window's begin says.

        True when a window has ended: the model to hold still is now the current one.
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

        Before the first window: what was assumed of the model.
        """
        common2 = self._common2 if self._windows else self._prior_error**2
        return common2, self._independent2

    def _begin(self) -> None:
        self._count = 0
        self._predicted = self._predicted2 = self._error = self._error2 = 0.0

    def _end(self) -> None:
        total2 = self._predicted**2
        run2, parts2, h = self._error**2 / total2, self._error2 / total2, self._predicted2 / total2
        if run2 > 1.0:  # a window in which the machine slept tells no more than that all was wrong
            run2, parts2 = 1.0, parts2 / run2
        self._windows += 1
        rate = max(_RATE, 1.0 / (self._windows + 1))
        self._run2 += rate * (run2 - self._run2)
        self._parts2 += rate * (parts2 - self._parts2)
        self._h += rate * (h - self._h)
        common2 = (self._run2 - self._parts2) / max(_LEAST_SHARE, 1.0 - self._h)
        self._common2 = min(self._run2, max(0.0, common2))
        self._independent2 = (self._run2 - self._common2) * WINDOW_STEPS
