"""Pages that take long to make, which many may ask for at once."""

import time
from collections.abc import Callable, Hashable

from foretell.services.scheduler.http1.response import Response

_SHORT_S = 0.0005
"""What takes no longer is made for each who asks, and is as new as can be."""
_SHARE = 0.2
"""Of the time, that one page may take."""
_MOST_PAGES = 64


class CostlyPages:
    """Pages as they were made last. They are shown again for so long that making them anew, however
    many ask, takes a share of the time."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._made: dict[Hashable, tuple[float, Response]] = {}

    def page(self, name: Hashable, make: Callable[[], Response]) -> Response:
        """The page of this name."""
        now_s = self._clock()
        until_s, response = self._made.get(name, (now_s, None))
        if response is not None and now_s < until_s:
            return response
        response = make()
        took_s = self._clock() - now_s
        if took_s > _SHORT_S:
            if len(self._made) >= _MOST_PAGES:
                self._made.clear()
            self._made[name] = now_s + took_s / _SHARE, response
        return response
