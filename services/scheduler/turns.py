"""Fair turns for reading from peers that send as fast as they are read."""

import asyncio
from collections import deque
from collections.abc import Callable

TURN_S = 0.002
"""How long all peers together are read before other tasks run; a last slice may exceed it."""


Read = Callable[[], bool]
"""Reads a bounded part of a peer's data; returns whether more of it can be read."""


class Turns:
    """The peers that have data to read, in the order of their turns."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        """`clock` in seconds; None: the event loop's."""
        self._loop = asyncio.get_running_loop()
        self._clock = clock or self._loop.time
        self._waiting: deque[Read] = deque()
        self._left_s = TURN_S
        self._is_planned = False

    def ask(self, read: Read) -> None:
        """Have a peer read, at once if there is time. A peer must not ask again while it waits."""
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
