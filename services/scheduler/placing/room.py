"""When there will be room for those who are refused."""

import time
from collections.abc import Callable, Iterable

_SORTED_FOR_S = 1.0
"""So long one sorting of all ends serves: many are refused at once."""


class Ends:
    """When the requests in progress are predicted to end."""

    def __init__(
        self, ends_s: Callable[[], Iterable[float]], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """`ends_s` are instants of `clock`."""
        self._ends_s = ends_s
        self._clock = clock
        self._sorted: list[float] = []
        self._sorted_s = float("-inf")

    def wait_s(self, number: int) -> float:
        """Seconds until so many more of them have ended; 0 where nothing is predicted."""
        now_s = self._clock()
        if now_s >= self._sorted_s + _SORTED_FOR_S:
            self._sorted, self._sorted_s = sorted(self._ends_s()), now_s
        if not self._sorted:
            return 0.0
        return max(0.0, self._sorted[min(number, len(self._sorted)) - 1] - now_s)
