"""The usual length of a delay, learned from observations that give only bounds on it."""

_STEP = 0.05  # the ratio by which one observation moves the estimate
_LEAST_STEP_S = 0.1e-3  # so that a belief of zero can grow


class UsualDelay:
    """An estimate of the median of a delay that varies and drifts, from one observation at a time.

    An engine looks at its queue once a step, so a request is only known to have joined between two
    looks. An observation that agrees with what is believed teaches nothing; any other moves the
    belief by 5% towards it, no further than it reaches, and however far away it is: half the
    observations pull up and half down where the belief is the median. A mean would follow the few
    requests that a busy machine delays a hundredfold, and the middles of wide bounds.
    """

    def __init__(self, assumed_s: float, longest_s: float = 2.0) -> None:
        """`assumed_s` is believed before anything was seen; nothing beyond `longest_s` is."""
        if not 0.0 <= assumed_s <= longest_s:
            raise ValueError(f"assumed_s must be in [0, {longest_s}], got {assumed_s}")
        self._seconds = assumed_s
        self._longest_s = longest_s

    @property
    def seconds(self) -> float:
        """The current estimate."""
        return self._seconds

    def learn(self, least_s: float, most_s: float) -> None:
        """The delay was at least `least_s` and at most `most_s`; below zero counts as zero."""
        least_s = min(self._longest_s, max(0.0, least_s))
        most_s = max(least_s, most_s)
        step_s = _STEP * self._seconds + _LEAST_STEP_S
        if self._seconds < least_s:
            self._seconds = min(least_s, self._seconds + step_s)
        elif self._seconds > most_s:
            self._seconds = max(most_s, self._seconds - step_s)
