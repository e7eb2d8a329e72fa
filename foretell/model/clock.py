"""The clock of code without I/O: asyncio's in services, a virtual one in the simulator."""

from collections.abc import Callable
from typing import Protocol

SNAPSHOT_INTERVAL_S = 0.1
"""Minimum time between two snapshots of a predictor, unless one is urgent."""


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Do not make the call."""
        ...


class Clock(Protocol):
    """A monotonic clock, in seconds."""

    def now_s(self) -> float: ...

    def at(self, at_s: float, action: Callable[[], None]) -> Timer:
        """Call `action` at that time."""
        ...
