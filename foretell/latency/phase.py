"""A temporary deviation from the usual, and how it fades while nothing is observed."""


class Phase:
    """A phase: the log of how many times as long as usual something takes, and for how long it has.

    If a phase is not observed any more, it may be over or not. A phase that was observed for T
    seconds outlasts the next t seconds with probability T / (T + t), since nothing else is known of
    its rate of ending (the posterior predictive under the prior 1 / rate: Jaynes 1968). So a phase
    of five seconds has faded by half after five more seconds, one of an hour after an hour. A phase
    that has lasted longer than all time before it becomes the usual state.
    """

    def __init__(self) -> None:
        self.log = 0.0
        self._lasted_s = self._area_s = self._before_s = 0.0

    @property
    def seconds(self) -> float:
        """For how long the phase has lasted at `log`; seconds at half of it count half."""
        return min(self._lasted_s, self._area_s / self.log) if self.log else 0.0

    def see(self, log: float, seconds: float) -> float:
        """Note that it was at `log` for `seconds` more.

        Returns the change of the usual on the log scale: 0, or `log` if the phase became the usual
        state and ended.
        """
        if log * self.log <= 0.0:  # the sign has changed: another phase begins
            self._before_s += self._lasted_s
            self._lasted_s = self._area_s = 0.0
        self.log = log
        self._lasted_s += seconds
        self._area_s += seconds * log
        if self.seconds <= self._before_s:
            return 0.0
        self._before_s += self._lasted_s
        self.log = self._lasted_s = self._area_s = 0.0
        return log

    def after(self, seconds: float) -> float:
        """What `log` fades to after so many seconds without observations."""
        if seconds <= 0.0 or not self.log:
            return self.log
        return self.log * self.seconds / (self.seconds + seconds)

    def rest(self, seconds: float) -> float:
        """Note seconds without observations; returns by how much `log` changes."""
        if seconds <= 0.0:
            return 0.0
        seen_s, before, self.log = self.seconds, self.log, self.after(seconds)
        self._lasted_s += seconds
        self._area_s = self.log * (seen_s + seconds)
        return self.log - before
