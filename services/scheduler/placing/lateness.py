"""How far this replica is behind with its work."""

import asyncio

_LOOK_EVERY_S = 0.05


class Lateness:
    """Runs a timer periodically and measures how much later than planned it fires."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """The latest delay in seconds."""
        self._loop = asyncio.get_running_loop()
        self._due_s = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._look()

    def close(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        now_s = self._loop.time()
        self.seconds = max(0.0, now_s - self._due_s)
        self._due_s = now_s + _LOOK_EVERY_S
        self._timer = self._loop.call_later(_LOOK_EVERY_S, self._look)
