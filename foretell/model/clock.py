"""The time that pure code goes by: asyncio's in services, a made-up one in the simulator."""

from collections.abc import Callable
from typing import Protocol

SNAPSHOT_INTERVAL_S = 0.1
"""Least time between two snapshots of a predictor, where nothing is urgent."""


class Timer(Protocol):
    """A time that will come."""

    def cancel(self) -> None:
        """It need not be told any more."""
        ...


class Clock(Protocol):
    """Seconds that never go back."""

    def now_s(self) -> float: ...

    def at(self, at_s: float, action: Callable[[], None]) -> Timer:
        """`action` at that time."""
        ...
