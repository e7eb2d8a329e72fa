"""How far this replica is behind."""

import asyncio

_LOOK_EVERY_S = 0.05


class Lateness:
    """Looks at the clock again and again, and sees how much later than planned it does so."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """The latest delay."""
        self._loop = asyncio.get_running_loop()
        self._due_s = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._look()

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        now_s = self._loop.time()
        self.seconds = max(0.0, now_s - self._due_s)
        self._due_s = now_s + _LOOK_EVERY_S
        self._timer = self._loop.call_later(_LOOK_EVERY_S, self._look)
