"""The latencies of the last answers, foretold and actual, for whoever looks at this replica."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

WINDOW_S = 60.0
"""Older answers are not told of."""
_MOST = 1024  # answers that are kept, of all instances together


class Latencies(NamedTuple):
    """One answer, in seconds from its placement; 0: not known."""

    ttft_s: float
    predicted_ttft_s: float
    e2e_s: float
    predicted_e2e_s: float


class Recent:
    """The last answers of a replica."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._answers: deque[tuple[float, str, Latencies]] = deque(maxlen=_MOST)

    def add(self, instance_id: str, latencies: Latencies) -> None:
        """An answer has ended."""
        self._answers.append((self._clock(), instance_id, latencies))

    def by_instance(self) -> dict[str, list[Latencies]]:
        """Those of the last minute, oldest first."""
        found: dict[str, list[Latencies]] = {}
        for instance_id, latencies in self._young():
            found.setdefault(instance_id, []).append(latencies)
        return found

    def _young(self) -> Iterator[tuple[str, Latencies]]:
        since_s = self._clock() - WINDOW_S
        return ((name, each) for ended_s, name, each in self._answers if ended_s >= since_s)
