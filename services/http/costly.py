"""Pages that take long to make, and that many clients may ask for at once."""

import time
from collections.abc import Callable, Hashable

from foretell.http1.response import Response

_SHARE = 0.2
"""Share of the time that making one page may take in the long run."""
_AT_ONCE_S = 0.05
"""Seconds that a page may exceed its share by, so that occasional requests get a new page."""
_MOST_PAGES = 64


class CostlyPages:
    """The latest version of each page. It is served again while making a new one would take more
    than a share of the time, however many clients ask."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._made: dict[Hashable, tuple[float, float, Response]] = {}
        """When each page was made, the seconds spent on it beyond its share, and the page."""

    def page(self, name: Hashable, make: Callable[[], Response]) -> Response:
        """The latest page of this name, or a new one by `make`."""
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
