"""Whose placement is next: one at a time, the most urgent first."""

import asyncio
from contextlib import suppress
from heapq import heapify, heappop, heappush
from itertools import count

from foretell.policy import Urgency


class Turns:
    """A lock that goes to the most urgent, and that its holder may keep while it waits for news."""

    def __init__(self) -> None:
        self._taken = False
        self._holding = False
        self._waiting: list[tuple[Urgency, int, asyncio.Future[None]]] = []
        self._tickets = count()
        self._news = asyncio.Event()

    async def take(self, urgency: Urgency, deadline_s: float) -> "Turn | None":
        """Wait for a turn; None if it took longer than the deadline.

        Time in which the turn's holder waits for news, and asks again, does not count: whoever is
        behind waits for the same news, and would fare no better without asking.
        """
        if self._taken and not await self._wait(urgency, deadline_s):
            return None
        self._taken = True
        return Turn(self, urgency)

    def news(self) -> None:
        """Something has changed: the turn's holder may look again."""
        self._news.set()

    async def _wait(self, urgency: Urgency, deadline_s: float | None) -> bool:
        waiter = urgency, next(self._tickets), asyncio.get_running_loop().create_future()
        heappush(self._waiting, waiter)
        turn = waiter[2]
        try:
            while not turn.done():
                await asyncio.wait({turn}, timeout=deadline_s)
                if not turn.done() and not self._holding:
                    return False
            return True
        except asyncio.CancelledError:
            if turn.done():
                self._pass_on()
            raise
        finally:
            if not turn.done():
                self._waiting.remove(waiter)
                heapify(self._waiting)

    def _pass_on(self) -> None:
        self._taken, self._holding = bool(self._waiting), False
        if self._waiting:
            heappop(self._waiting)[2].set_result(None)

    async def _hear(self, at_most_s: float) -> None:
        self._holding = True  # until the turn is passed on: to ask again is part of it
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most_s):
                await self._news.wait()
        self._news.clear()  # what comes while predictors are asked is heard next time

    def _behind(self, urgency: Urgency) -> bool:
        return bool(self._waiting) and self._waiting[0][0] < urgency


class Turn:
    """It is somebody's turn, until given back."""

    def __init__(self, turns: Turns, urgency: Urgency) -> None:
        self._turns = turns
        self._urgency = urgency
        self._mine = True

    def give(self) -> None:
        """The request is placed, or will not be."""
        if self._mine:
            self._mine = False
            self._turns._pass_on()

    async def wait_for_news(self, at_most_s: float) -> None:
        """Keep the turn until something changes; whoever is more urgent goes first then."""
        turns = self._turns
        await turns._hear(at_most_s)
        if turns._behind(self._urgency):
            self.give()
            await turns._wait(self._urgency, None)
            self._mine = True
