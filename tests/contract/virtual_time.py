"""An event loop whose clock jumps: sockets are real, waiting takes no time.

The clock stands while anything can run and jumps to the next timer when nothing can. What takes an
emulated engine a minute then takes as long as its computing does, and no other process's load shows
in any measured time.
"""

import asyncio
import selectors
import time
from types import SimpleNamespace
from typing import Any

# Loopback delivers at once, nearly always. Before a jump that may be a time-out, better be sure.
_LONG_S, _PATIENCE_S = 0.5, 0.2


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:  # no timer: only a socket can go on
            return super().select(None)
        ready = super().select(0)
        if ready or timeout <= 0:
            return ready
        ready = super().select(_PATIENCE_S if timeout > _LONG_S else 0)
        if not ready:
            self.now_s += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """For `asyncio.Runner(loop_factory=VirtualTimeLoop)`."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s

    def as_time_module(self) -> SimpleNamespace:
        """What stands in for the module `time` where clocks are read."""
        return SimpleNamespace(
            monotonic=self.time,
            perf_counter=self.time,
            time=lambda: 1_700_000_000.0 + self.time(),
            strftime=time.strftime,
        )
