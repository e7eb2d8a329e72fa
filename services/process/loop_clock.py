"""The time of the event loop."""

import asyncio
from collections.abc import Callable

from foretell.model.clock import Timer


class LoopClock:
    """`foretell.model.clock.Clock` of the running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.now_s = self._loop.time

    def at(self, at_s: float, action: Callable[[], None]) -> Timer:
        """Call `action` at `at_s`."""
        return self._loop.call_at(at_s, action)
