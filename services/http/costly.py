"""Pages that take long to make, which many may ask for at once."""

import time
from collections.abc import Callable, Hashable

from foretell.http1.response import Response

_SHARE = 0.2
"""Of the time, that one page may take for long."""
_AT_ONCE_S = 0.05
"""What it may take before that counts: who asks now and then gets it as new as can be."""
_MOST_PAGES = 64


class CostlyPages:
    """Pages as they were made last. They are shown again while making them anew, however many ask,
    would take more than a share of the time."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._made: dict[Hashable, tuple[float, float, Response]] = {}
        """When each was made, what that and those before it took beyond their share, and it."""

    def page(self, name: Hashable, make: Callable[[], Response]) -> Response:
        """The page of this name."""
        now_s = self._clock()
        at_s, taken_s, response = self._made.get(name, (now_s, 0.0, None))
        taken_s = max(0.0, taken_s - _SHARE * (now_s - at_s))
        if response is not None and taken_s > _AT_ONCE_S:
            return response
        response = make()
        if len(self._made) >= _MOST_PAGES:
            self._made.clear()
        self._made[name] = now_s, taken_s + self._clock() - now_s, response
        return response
