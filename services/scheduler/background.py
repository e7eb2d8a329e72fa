"""Tasks that no client waits for."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)

MAX_TASKS = 10_000


class Background:
    """Keeps references to running tasks, bounds their number and waits for them at the end."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._dropped = 0

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run `work` as a task, or drop it and say so in the log if `MAX_TASKS` run already."""
        if len(self._tasks) >= MAX_TASKS:
            self._dropped += 1
            if self._dropped & (self._dropped - 1) == 0:  # the 1st, 2nd, 4th, 8th, ...
                logger.warning("%d background tasks were dropped so far", self._dropped)
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drain(self, timeout_s: float) -> None:
        """Wait for the running tasks for at most `timeout_s`, then cancel the rest."""
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=timeout_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
