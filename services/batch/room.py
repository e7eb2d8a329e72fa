"""Bounds the bytes of lines held in memory. A line is held from its read until its answer."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

MOST_BYTES = 48 << 20
"""Three of the longest lines. Memory holds a line three times while its request is built."""


class Room:
    """A tenant may hold at most as many bytes as stay free, so that other tenants find room however
    long its lines wait for their answers."""

    def __init__(self, limit: int = MOST_BYTES) -> None:
        self._free = limit
        self._held: Counter[str] = Counter()
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def of(self, tenant: str, number: int) -> AsyncIterator[None]:
        """Wait for room, then hold `number` bytes while the block runs."""
        while self._held[tenant] + number > self._free - number:
            self._freed.clear()
            await self._freed.wait()
        self._free -= number
        self._held[tenant] += number
        try:
            yield
        finally:
            self._free += number
            self._held -= Counter({tenant: number})
            self._freed.set()
