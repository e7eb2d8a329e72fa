"""The event queue of virtual time."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf

from foretell.sim.instance import InvariantError, check

MAX_EVENTS = 500_000_000
"""Events after which a run counts as endless; a bound, not a tuning knob."""


class SimTimer:
    """A scheduled action, which can be cancelled."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        self.action = None


class Events:
    """A queue of actions in order of time; actions of one time run in the order of insertion."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._queue: list[tuple[float, int, SimTimer]] = []
        self._order = count()

    def at(self, at_s: float, action: Callable[[], None]) -> SimTimer:
        """Run `action` at that time."""
        timer = SimTimer(action)
        heappush(self._queue, (at_s, next(self._order), timer))
        return timer

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run `action` now, or later if `delay_s` is positive."""
        if delay_s > 0:
            self.at(self.now_s + delay_s, action)
        else:
            action()

    def run(self, between: Callable[[float], bool]) -> None:
        """Run all actions; InvariantError if time goes back, or after `MAX_EVENTS` events.

        `between` does what is due elsewhere, up to and including the time it gets. It may stop
        early, and returns True to be called again. It sets `now_s`.
        """
        for _ in range(MAX_EVENTS):
            if between(self._queue[0][0] if self._queue else inf):
                continue
            if not self._queue:
                return
            at_s, _, timer = heappop(self._queue)
            if timer.action is None:
                continue
            check(at_s >= self.now_s, f"time went from {self.now_s} back to {at_s}")
            self.now_s = at_s
            timer.action()
        raise InvariantError(f"no end after {MAX_EVENTS} events")


class VirtualClock:
    """The queue's time as `foretell.model.clock.Clock`."""

    def __init__(self, events: Events) -> None:
        self._events = events

    def now_s(self) -> float:
        return self._events.now_s

    def at(self, at_s: float, action: Callable[[], None]) -> SimTimer:
        """Schedule `action` for that time, or for now if it has passed."""
        return self._events.at(max(at_s, self._events.now_s), action)
