"""The loop around one placement core: events in, effects carried out, in order.

The scheduler service runs it on asyncio's clock, the simulator in virtual time.
"""

from collections import deque
from collections.abc import Callable

from foretell.model.clock import Clock, Timer
from foretell.placement import effects as do
from foretell.placement import events as on
from foretell.placement.core import PlacementCore
from foretell.placement.ports import Send

Record = Callable[[on.Event, float], None]
"""Gets each event with its time before the core does."""


class Driver:
    """Connects one core to a clock and to `Send`, which carries out its effects. For one thread."""

    def __init__(
        self,
        core: PlacementCore,
        clock: Clock,
        send: Send,
        record: Record = lambda event, now_s: None,
    ) -> None:
        self.core = core
        self._clock = clock
        self._send = send
        self._record = record
        self._timers: dict[str, Timer] = {}
        self._events: deque[on.Event] = deque()
        self._telling = False

    def tell(self, event: on.Event) -> None:
        """Pass `event` to the core and carry out its effects.

        Events that are reported while effects are carried out are queued behind it.
        """
        self._events.append(event)
        if self._telling:
            return
        self._telling = True
        try:
            while self._events:
                next_event, now_s = self._events.popleft(), self._clock.now_s()
                self._record(next_event, now_s)
                for effect in self.core.step(next_event, now_s):
                    self._carry_out(effect)
        finally:
            self._telling = False

    def forget_timer(self, key: str) -> None:
        """Cancel the timer of a request, if it has one."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def _carry_out(self, effect: do.Effect) -> None:
        match effect:  # the most frequent first
            case do.Dispatch():
                self._send.dispatch(effect)
            case do.Recall():
                self._send.recall(effect)
            case do.GiveUp():
                self._send.give_up(effect)
            case do.WaitUntil(key, at_s, ticket):
                self.forget_timer(key)
                self._timers[key] = self._clock.at(at_s, lambda: self._time_passed(key, ticket))
            case do.Revise():
                self._send.revise(effect)
            case do.Refuse():
                self._send.refuse(effect)
            case do.Degraded():
                self._send.degraded(effect)

    def _time_passed(self, key: str, ticket: int) -> None:
        self._timers.pop(key, None)
        self.tell(on.TimePassed(key, ticket))
