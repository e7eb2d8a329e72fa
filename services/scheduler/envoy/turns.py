"""Whose turn it is: in each turn of the event loop all peers together are read for a bounded time,
one slice after the other."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

TURN_S = 0.002
"""For so long all peers together are read; then everybody else gets a turn. A slice more may be
begun."""


class Peer(Protocol):
    """Who is read."""

    def read_slice(self) -> bool:
        """Read a bounded part of what has come; whether more of it can be read."""
        ...


class Turns:
    """The peers of which something can be read, in the order in which they are."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        """`clock` in seconds; None: the event loop's."""
        self._loop = asyncio.get_running_loop()
        self._clock = clock or self._loop.time
        self._waiting: deque[Peer] = deque()
        self._left_s = TURN_S
        self._is_planned = False

    def ask(self, peer: Peer) -> None:
        """Have a peer read, at once if there is time. It waits for one turn at a time."""
        self._waiting.append(peer)
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and self._left_s > 0:
            began_s = self._clock()
            peer = self._waiting.popleft()
            if peer.read_slice():
                self._waiting.append(peer)
            self._left_s -= self._clock() - began_s
        if not self._is_planned:
            self._is_planned = True
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        self._is_planned = False
        self._left_s = TURN_S
        if self._waiting:
            self._go_on()
