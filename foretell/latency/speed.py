"""The current speed of an engine, relative to the learnt step times.

An engine's host has phases of some seconds: another process, a clock, a governor. They lengthen
steps of all shapes alike, so they are tracked by one factor, and not by the coefficients, which are
learnt from thousands of steps.
"""

import math

_RECENT_S, _RECENT_STEPS = 1.0, 64
_LASTING_S, _LASTING_STEPS = 60.0, 2048
_RECENT_BELIEF, _LASTING_BELIEF = 0.25, 0.1  # knowledge at which a factor has half its weight
_FIRST_STEPS = 32  # these teach the coefficients; their errors are not the engine's speed
# A step's excess over its prediction is clipped at this many mean errors: one stall does not
# predict the next seconds, but stalls that keep coming are part of the mean.
_CLIP = 3.0


class _Decayed:
    """Actual over predicted seconds, with exponential decay by seconds or steps."""

    def __init__(self, seconds: float, steps: int) -> None:
        self._seconds, self._per_step = seconds, 1.0 / steps
        self._actual_s = self._predicted_s = 0.0
        self.knowledge = 0.0
        """0 to 1: how much of the window is filled."""

    def kept(self, actual_s: float) -> float:
        """The factor by which a step of `actual_s` decays earlier steps."""
        return math.exp(-min(actual_s / self._seconds, self._per_step))

    def add(self, actual_s: float, predicted_s: float) -> None:
        kept = self.kept(actual_s)
        self._actual_s = kept * self._actual_s + actual_s
        self._predicted_s = kept * self._predicted_s + predicted_s
        self.knowledge = kept * self.knowledge + 1.0 - kept

    def log_ratio(self) -> float:
        return math.log(self._actual_s / self._predicted_s)


class Speed:
    """A factor on step times: that of the last second, shrunk towards that of the last 60 s.

    Both are sums of actual over sums of predicted seconds, so they correct the mean, which a
    regression that ignores stalls underestimates. Windows hold at least 64 and 2,048 steps. `fade`
    changes the factor while there are no steps; observations replace this change as the window of
    the last second fills. Not thread-safe.
    """

    def __init__(self) -> None:
        self.factor = 1.0
        """The expected ratio of actual to predicted time in the next seconds."""
        self.begin()

    def begin(self) -> None:
        """Forget everything, since another model predicts from now on."""
        self.factor = 1.0
        self._steps = 0
        self._faded = 0.0
        self._recent = _Decayed(_RECENT_S, _RECENT_STEPS)
        self._lasting = _Decayed(_LASTING_S, _LASTING_STEPS)

    def add(self, actual_s: float, predicted_s: float, usual_error: float) -> None:
        """Note that a step took `actual_s`, with `predicted_s` predicted without the factor.

        Both must be positive. `usual_error`: mean of |actual - predicted| / the larger of the two.
        """
        self._steps += 1
        self._faded *= self._recent.kept(actual_s)
        if self._steps <= _FIRST_STEPS:
            self.factor = math.exp(self._faded)
            return
        actual_s = min(actual_s, (1.0 + _CLIP * usual_error) * predicted_s)
        self._recent.add(actual_s, predicted_s)
        self._lasting.add(actual_s, predicted_s)
        belief = _belief(self._recent, _RECENT_BELIEF)
        lasting = _belief(self._lasting, _LASTING_BELIEF) * self._lasting.log_ratio()
        recent = belief * self._recent.log_ratio()
        self.factor = math.exp(self._faded + recent + (1.0 - belief) * lasting)

    def fade(self, factor: float) -> None:
        """Multiply the expected time of the next steps by `factor`."""
        self._faded += math.log(factor)
        self.factor *= factor


def _belief(window: _Decayed, half: float) -> float:
    return window.knowledge / (window.knowledge + half)
