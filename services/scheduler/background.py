"""Work that no client waits for."""

import asyncio
from collections.abc import Coroutine
from typing import Any

MAX_TASKS = 10_000


class Background:
    """Keeps references to running tasks, bounds their number, waits for them at the end."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self.dropped = 0

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run `work` beside everything else; dropped, and counted, when too much runs already."""
        if len(self._tasks) >= MAX_TASKS:
            self.dropped += 1
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drain(self, timeout_s: float) -> None:
        """Wait for what runs, at most `timeout_s`, then cancel the rest."""
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=timeout_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
