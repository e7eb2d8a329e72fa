"""An event loop whose clock jumps: sockets are real, waiting takes no time.

The clock stands still while anything can run, and jumps to the next timer when nothing can. A
minute of an emulated engine then takes only its computing time, and no other process's load
affects a measured time.
"""

import asyncio
import selectors
import time
from types import SimpleNamespace
from typing import Any

# Loopback nearly always delivers at once. Before a jump to a possible timeout, wait to be sure.
_LONG_S, _PATIENCE_S = 0.5, 0.2


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:  # no timer: only a socket can wake the loop
            return super().select(None)
        ready = super().select(0)
        if ready or timeout <= 0:
            return ready
        ready = super().select(_PATIENCE_S if timeout > _LONG_S else 0)
        if not ready:
            self.now_s += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop for `asyncio.Runner(loop_factory=VirtualTimeLoop)`."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s

    def as_time_module(self) -> SimpleNamespace:
        """A replacement for the module `time` in modules that read clocks."""
        return SimpleNamespace(
            monotonic=self.time,
            perf_counter=self.time,
            time=lambda: 1_700_000_000.0 + self.time(),
            strftime=time.strftime,
        )
