"""How many bytes of lines are held at once: each is, from when it is read until it is answered."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

MOST_BYTES = 48 << 20
"""Three of the longest lines. While one is made a request of, it is held three times."""


class Room:
    """A tenant leaves as much free as it takes, so that others find room beside it, however long
    its lines wait for their answers."""

    def __init__(self, limit: int = MOST_BYTES) -> None:
        self._free = limit
        self._held: Counter[str] = Counter()
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def of(self, tenant: str, number: int) -> AsyncIterator[None]:
        """Hold so many bytes while the block runs; it begins when there is room."""
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
