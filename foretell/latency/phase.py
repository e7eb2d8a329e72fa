"""How long something has been other than usual, and how belief in that fades unseen."""


class Phase:
    """The logarithm of how many times as long as usual something takes, and for how long it has.

    A phase that nobody sees any more is neither over nor there for ever. One that was seen for T
    seconds outlasts the next t with probability T / (T + t), as nothing else is known of its rate
    of ending (the posterior predictive under the prior 1 / rate: Jaynes 1968). So what was seen for
    five seconds is half forgotten five seconds later, and what was seen for an hour after an hour.
    A phase that has lasted longer than all before it is what is usual from then on.
    """

    def __init__(self) -> None:
        self.log = 0.0
        self._lasted_s = self._area_s = self._before_s = 0.0

    @property
    def seconds(self) -> float:
        """For how long it has been as far from usual; being half as far counts half."""
        return min(self._lasted_s, self._area_s / self.log) if self.log else 0.0

    def see(self, log: float, seconds: float) -> float:
        """It was seen to be at `log` for so many seconds more.

        Returns by how much what is usual changes, on the same scale, of which nothing is left here.
        """
        if log * self.log <= 0.0:  # it has passed what is usual
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
        """What `log` is believed to be once nothing has been seen for so long."""
        if seconds <= 0.0 or not self.log:
            return self.log
        return self.log * self.seconds / (self.seconds + seconds)

    def rest(self, seconds: float) -> float:
        """So many seconds have passed in which nothing was seen. By how much `log` changes."""
        if seconds <= 0.0:
            return 0.0
        seen_s, before, self.log = self.seconds, self.log, self.after(seconds)
        self._lasted_s += seconds
        self._area_s = self.log * (seen_s + seconds)
        return self.log - before
