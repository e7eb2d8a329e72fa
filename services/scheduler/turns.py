"""Whose turn it is to be read, where peers send as much as is taken."""

import asyncio
from collections import deque
from collections.abc import Callable

TURN_S = 0.002
"""For so long all peers together are read; then everybody else gets a turn. A slice more may be
begun."""


Read = Callable[[], bool]
"""Reads a bounded part of what has come of a peer; whether more of it can be read."""


class Turns:
    """The peers of which something can be read, in the order in which they are."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        """`clock` in seconds; None: the event loop's."""
        self._loop = asyncio.get_running_loop()
        self._clock = clock or self._loop.time
        self._waiting: deque[Read] = deque()
        self._left_s = TURN_S
        self._is_planned = False

    def ask(self, read: Read) -> None:
        """Have a peer read, at once if there is time. It waits for one turn at a time."""
        self._waiting.append(read)
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and self._left_s > 0:
            began_s = self._clock()
            read = self._waiting.popleft()
            if read():
                self._waiting.append(read)
            self._left_s -= self._clock() - began_s
        if not self._is_planned:
            self._is_planned = True
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        self._is_planned = False
        self._left_s = TURN_S
        if self._waiting:
            self._go_on()
