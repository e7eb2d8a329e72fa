"""The usual length of a delay, learned from observations that only bound it."""

import math

from foretell.latency.phase import Phase

_STEP = 0.05  # the ratio by which one observation moves the estimate
_LEAST_STEP_S = 0.1e-3  # so that a belief of zero can grow
_ALIKE = 2.0  # a pause up to this many times as long as the last is similar to it
LONGEST_S = 2.0
"""The longest delay that is believed."""


class UsualDelay:
    """An estimate of the median of a delay that varies and drifts, from one observation at a time.

    An engine looks at its queue once a step, so a request is only known to have joined between two
    looks. If the estimate is within these bounds, it stays. Otherwise it moves by 5% towards the
    nearer bound, but not beyond, however far the bound is: at the median, half of the observations
    pull up and half down. A mean would follow the few requests that a busy machine delays a
    hundredfold, and the middles of wide bounds.

    Without observations, a deviation from the usual delay fades (`latency.phase`): an engine that
    is believed to be late gets few requests from which to learn otherwise. Time is an argument.
    """

    def __init__(self, assumed_s: float, longest_s: float = LONGEST_S) -> None:
        """`assumed_s` is the estimate before any observation; it never exceeds `longest_s`."""
        if not 0.0 <= assumed_s <= longest_s:
            raise ValueError(f"assumed_s must be in [0, {longest_s}], got {assumed_s}")
        self._usual_s = assumed_s
        self._phase = Phase()
        self._longest_s = longest_s
        self._seen_s: float | None = None
        self._pause_s = 0.0

    def at(self, now_s: float) -> float:
        """The estimate at that time, in seconds."""
        if self._seen_s is None:
            self._seen_s = now_s  # the assumed delay counts as observed from now on
        if not self._phase.log:
            return self._usual_s
        return self._seconds(self._phase.after(now_s - self._seen_s))

    def learn(self, least_s: float, most_s: float, now_s: float) -> None:
        """Note that a delay was in [`least_s`, `most_s`]; negative values count as zero."""
        least_s = min(self._longest_s, max(0.0, least_s))
        most_s = max(least_s, most_s)
        since_s = max(0.0, now_s - (now_s if self._seen_s is None else self._seen_s))
        seen_s = since_s
        if not self._has_lasted(least_s, most_s, since_s):
            seen_s = min(since_s, least_s)  # the time in which the request was on its way
            self._phase.rest(since_s - seen_s)
        seconds = self._seconds(self._phase.log)
        if seconds < least_s:
            seconds = min(least_s, seconds + _step_s(seconds))
        elif seconds > most_s:
            seconds = max(most_s, seconds - _step_s(seconds))
        log = math.log((seconds + _LEAST_STEP_S) / (self._usual_s + _LEAST_STEP_S))
        self._usual_s = self._seconds(self._phase.see(log, seen_s))
        self._seen_s, self._pause_s = now_s, since_s

    def _has_lasted(self, least_s: float, most_s: float, since_s: float) -> bool:
        """Whether the phase counts as having lasted through the pause of `since_s`.

        The pause must be no longer than the phase, or similar to the pause before. Besides, the new
        observation must not contradict the phase, or the pause must fade it by less than one step.
        """
        seconds = self._seconds(self._phase.log)
        towards_s = min(most_s, max(least_s, seconds)) - seconds
        faded_s = abs(self._seconds(self._phase.after(since_s)) - seconds)
        agrees = towards_s * self._phase.log >= 0.0
        is_short = since_s <= max(self._phase.seconds, _ALIKE * self._pause_s)
        return is_short and (agrees or faded_s <= _step_s(seconds))

    def _seconds(self, log: float) -> float:
        if not log:
            return self._usual_s
        return max(0.0, (self._usual_s + _LEAST_STEP_S) * math.exp(log) - _LEAST_STEP_S)


def _step_s(seconds: float) -> float:
    return _STEP * seconds + _LEAST_STEP_S
