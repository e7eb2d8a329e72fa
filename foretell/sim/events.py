"""The event queue of virtual time."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf

from foretell.sim.instance import InvariantError, check

MAX_EVENTS = 500_000_000
"""Events after which a run counts as endless; a bound, not a tuning knob."""


class Timer:
    """What is to happen at some time, unless it is cancelled."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        self.action = None


class Events:
    """A queue in order of time; what is due at one instant runs in the order it was made."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._queue: list[tuple[float, int, Timer]] = []
        self._order = count()

    def at(self, at_s: float, action: Callable[[], None]) -> Timer:
        """`action` at that time."""
        timer = Timer(action)
        heappush(self._queue, (at_s, next(self._order), timer))
        return timer

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Now, or later."""
        if delay_s > 0:
            self.at(self.now_s + delay_s, action)
        else:
            action()

    def run(self, between: Callable[[float], bool]) -> None:
        """Until nothing is left; InvariantError where time goes back or there is no end.

        `between` does what is due elsewhere up to a time, that included: at least the first thing
        of note, then it returns True and is asked again. It sets `now_s`.
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

    def at(self, at_s: float, action: Callable[[], None]) -> Timer:
        """`action` at that time, or now if it has passed."""
        return self._events.at(max(at_s, self._events.now_s), action)
