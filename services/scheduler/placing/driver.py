"""Drives the placement core with asyncio: events in, effects carried out, in order."""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from foretell.placement import PlacementCore, effects, events
from foretell.placement.request import Stage

Placed = TypeVar("Placed")


class AsyncDriver(ABC, Generic[Placed]):
    """The loop around one core; a subclass knows the ways to tagger, predictors and clients.

    Whoever wants a request placed awaits it; the clock is the event loop's.
    """

    def __init__(self, core: PlacementCore) -> None:
        self.core = core
        self._loop = asyncio.get_running_loop()
        self._awaited: dict[str, asyncio.Future[Placed]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._events: deque[events.Event] = deque()
        self._telling = False

    def tell(self, event: events.Event) -> None:
        """Tell the core of `event` and carry out what it wants done.

        What answers at once, while that is carried out, is told behind it.
        """
        self._events.append(event)
        if self._telling:
            return
        self._telling = True
        try:
            while self._events:
                for effect in self.core.step(self._events.popleft(), self._loop.time()):
                    self._carry_out(effect)
        finally:
            self._telling = False

    async def _placed_after(
        self, key: str, event: events.Arrived | events.Failed | events.Recalled
    ) -> Placed:
        """Tell the core of `event`; return once the request is dispatched, or raise why not.

        A caller that is cancelled meanwhile counts as a client that has left.
        """
        found: asyncio.Future[Placed] = self._loop.create_future()
        self._awaited[key] = found
        try:
            self.tell(event)
            return await found
        except asyncio.CancelledError:
            stage = self.core.stage(key)
            if stage is Stage.END:
                self._unsent(key)
                self.tell(events.Ended(key))
            elif stage is not None:
                self.tell(events.Gone(key))
            raise
        finally:
            del self._awaited[key]
            self._forget_timer(key)

    def _carry_out(self, effect: effects.Effect) -> None:  # noqa: PLR0912 - a case for each
        match effect:  # what nearly each request has first
            case effects.Dispatch(key):
                placed = self._dispatched(effect)
                if not self._awaited[key].done():  # otherwise its caller is being cancelled
                    self._awaited[key].set_result(placed)
            case effects.Reserve():
                self._reserve(effect)
            case effects.Ask():
                self._ask_or_know(effect)
            case effects.Review():
                self.tell(self._review(effect))
            case effects.Recall(key):
                if not self._take_back(key):
                    self.tell(events.Started(key))
            case effects.GiveUp(key):
                self._give_up(key)
            case effects.WaitUntil(key, at_s, ticket):
                self._forget_timer(key)
                told = events.TimePassed(key, ticket)
                self._timers[key] = self._loop.call_at(at_s, self.tell, told)
            case effects.Revise():
                self._revise(effect)
            case effects.Refuse(key):
                if not self._awaited[key].done():
                    self._awaited[key].set_exception(self._refused(effect))
            case effects.Degraded():
                self._degraded(effect)

    def _ask_or_know(self, effect: effects.Ask) -> None:
        began_s = self._seconds()
        known = self._known(effect)
        took_s = self._seconds() - began_s
        found = {answer.instance_id for answer in known}
        missing = tuple(name for name in effect.instance_ids if name not in found)
        if missing and effect.calls:
            self._spawn(self._heard(replace(effect, instance_ids=missing), known))
        else:
            self.tell(events.Heard(effect.key, known, took_s))

    async def _heard(self, effect: effects.Ask, known: Sequence[events.Answer]) -> None:
        answers = await self._ask(effect)
        self.tell(events.Heard(effect.key, (*known, *answers)))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _forget_timer(self, key: str) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def _seconds(self) -> float:
        """The time by which it is measured what answers cost; where it stands they cost nothing."""
        return 0.0

    def _known(self, effect: effects.Ask) -> Sequence[events.Answer]:
        """The answers of predictors that need not be asked."""
        return ()

    @abstractmethod
    async def _ask(self, effect: effects.Ask) -> Sequence[events.Answer]:
        """Ask the predictors; one answer for each, in time."""

    def _review(self, effect: effects.Review) -> events.Reviewed:
        """What is known of a request's wait, here and elsewhere, without asking anybody."""
        return events.Reviewed(effect.key, None)

    def _take_back(self, key: str) -> bool:
        """Take a dispatched request back from its engine, unless it has a token; whether it was.

        Whoever awaits its answer is told, and then tells `events.Recalled`.
        """
        return False

    def _give_up(self, key: str) -> None:
        """End a dispatched request's attempt, unless something of its answer has come.

        Whoever awaits its answer then tells `events.Failed`.
        """

    @abstractmethod
    def _reserve(self, effect: effects.Reserve) -> None:
        """Tell the predictor of the chosen instance; the call must be on its way on return."""

    def _revise(self, effect: effects.Revise) -> None:
        """Tell the predictor of the instance what else is known of the request."""

    @abstractmethod
    def _dispatched(self, effect: effects.Dispatch) -> Placed:
        """Make the result for the caller that awaits the placement."""

    @abstractmethod
    def _unsent(self, key: str) -> None:
        """A dispatched request is not sent after all: its caller has left."""

    @abstractmethod
    def _refused(self, effect: effects.Refuse) -> Exception:
        """Make the exception for the caller that awaits the placement."""

    @abstractmethod
    def _degraded(self, effect: effects.Degraded) -> None:
        """Count what a placement had to do without."""
