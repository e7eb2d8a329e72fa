"""How fast an engine is at the moment, beside what is learnt of its steps' shapes.

An engine's host has phases of some seconds: another process, a clock, a governor. They lengthen
steps of all shapes alike, so they are followed by one factor, and not by coefficients, which are
learnt from thousands of steps.
"""

import math

_RECENT_S, _RECENT_STEPS = 1.0, 64
_LASTING_S, _LASTING_STEPS = 60.0, 2048
_RECENT_BELIEF, _LASTING_BELIEF = 0.25, 0.1  # knowledge at which a factor is half believed
_FIRST_STEPS = 32  # teach the shapes; what they are off by is not the engine's speed
# A step longer than predicted by more than this many mean errors counts as that much: one stall
# says nothing of the seconds to come, but stalls that keep coming are part of the mean.
_CLIP = 3.0


class _Decayed:
    """Actual over predicted seconds, of about the last so many."""

    def __init__(self, seconds: float, steps: int) -> None:
        self._seconds, self._per_step = seconds, 1.0 / steps
        self._actual_s = self._predicted_s = 0.0
        self.knowledge = 0.0
        """0 to 1: how much of the window has been seen."""

    def kept(self, actual_s: float) -> float:
        """What a step leaves of what was known before."""
        return math.exp(-min(actual_s / self._seconds, self._per_step))

    def add(self, actual_s: float, predicted_s: float) -> None:
        kept = self.kept(actual_s)
        self._actual_s = kept * self._actual_s + actual_s
        self._predicted_s = kept * self._predicted_s + predicted_s
        self.knowledge = kept * self.knowledge + 1.0 - kept

    def log_ratio(self) -> float:
        return math.log(self._actual_s / self._predicted_s)


class Speed:
    """A factor on step times: that of the last second, drawn towards that of the last 60 s.

    Both are sums of actual over sums of predicted seconds, so what they correct is the mean: a
    regression that ignores stalls is too low by them. Windows hold at least 64 and 2,048 steps.
    What is believed of an engine that makes no steps (`fade`) gives way to what is seen of it then,
    as the window of the last second fills. Not thread-safe.
    """

    def __init__(self) -> None:
        self.factor = 1.0
        """Actual over predicted time, as it is to be expected of the next seconds."""
        self.begin()

    def begin(self) -> None:
        """Forget: what is predicted is another model's from now on."""
        self.factor = 1.0
        self._steps = 0
        self._faded = 0.0
        self._recent = _Decayed(_RECENT_S, _RECENT_STEPS)
        self._lasting = _Decayed(_LASTING_S, _LASTING_STEPS)

    def add(self, actual_s: float, predicted_s: float, usual_error: float) -> None:
        """A step took `actual_s`; without the factor `predicted_s` was predicted.

        Both above zero. `usual_error`: the mean of |actual - predicted| / the larger of the two.
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
        """Steps to come are believed to take `factor` times as long as they were until now."""
        self._faded += math.log(factor)
        self.factor *= factor


def _belief(window: _Decayed, half: float) -> float:
    return window.knowledge / (window.knowledge + half)
