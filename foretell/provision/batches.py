"""How many instances batches need to end when they are due: a lower bound for any strategy."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class Due:
    """One batch that has not ended, as the batch service predicts it."""

    within_s: float
    """Seconds until it is due: until the promised end, or else until its deadline."""
    left_s: float | None
    """Seconds that it and all work before it will take with the present instances, at the promised
    confidence; None while nothing is known about its requests."""


@dataclass(frozen=True, slots=True)
class BatchDemand:
    """Batches that have not ended."""

    instances: int = 0
    """Instances that worked on them when their ends were predicted."""
    due: Sequence[Due] = ()

    def floor(self, cold_start_s: float) -> int:
        """The fewest instances with which every batch ends in time; 0 without batches.

        Twice as many instances are assumed to take half the time, and missing ones to be ready
        after a cold start. If they could not be ready in time, the present ones are kept.
        """
        return max((self._needed(each, cold_start_s) for each in self.due), default=0)

    def _needed(self, due: Due, cold_start_s: float) -> int:
        if due.left_s is None or due.within_s <= 0.0:
            return 1
        if due.left_s <= due.within_s:
            return max(1, ceil(self.instances * due.left_s / due.within_s))
        if due.within_s <= cold_start_s:
            return max(1, self.instances)
        after_s = due.left_s - cold_start_s, due.within_s - cold_start_s
        return max(1, ceil(self.instances * after_s[0] / after_s[1]))
