"""The order in which engines serve, where they serve by priority: the largest requests last."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from foretell.model import Prediction, RequestSpec

WINDOW = 1000
"""Requests that a newcomer's size is compared with."""
_LEAST_KNOWN = 100
_LAST_PRIORITY = 2**31 - 1  # vLLM's own bound; a lower number goes first
LONGEST_WAIT_S = 10.0
"""Nobody is put last who would then be foretold to wait longer for a first token."""


class LargestLast:
    """Finds the requests that are among the largest `ratio` of the last `WINDOW`.

    A request is as large as the KV tokens that it will hold, times the steps it holds them for:
    `output * (prompt + output / 2)`, with its expected output. Where memory is short, a few large
    requests keep many small ones waiting, and are what preemptions make room for; to serve them
    when nobody else waits costs them some seconds of the half minute that they take anyway. It is
    the mildest form of *shortest job first*. What it is worth is measured by
    `bench.placement.order`.

    Engines must admit by priority (vLLM's `--scheduling-policy priority`). Deterministic given the
    requests before.
    """

    def __init__(self, ratio: float) -> None:
        """ValueError unless `ratio` is in (0, 1)."""
        if not 0.0 < ratio < 1.0:
            raise ValueError(f"the ratio of requests that go last must be in (0, 1), got {ratio}")
        self._ratio = ratio
        self._recent: deque[float] = deque()
        self._ascending: list[float] = []

    def ranked(self, request: RequestSpec) -> RequestSpec:
        """`request`, its priority one lower if it is one of the largest; the first ones never are.

        Its size is remembered.
        """
        size = size_of(request)
        known = len(self._ascending)
        smaller = bisect_left(self._ascending, size)
        self._remember(size)
        if known < _LEAST_KNOWN or smaller < (1.0 - self._ratio) * known:
            return request
        return replace(request, priority=min(request.priority + 1, _LAST_PRIORITY))

    def _remember(self, size: float) -> None:
        insort(self._ascending, size)
        self._recent.append(size)
        if len(self._recent) > WINDOW:
            del self._ascending[bisect_left(self._ascending, self._recent.popleft())]


def size_of(request: RequestSpec) -> float:
    """KV tokens times steps, as far as is known before."""
    output = request.length.expected_tokens
    return request.sequences * output * (request.prompt_tokens + output / 2.0)


def waits_too_long(predictions: Iterable[Prediction | None]) -> bool:
    """Whether a request that was put last should not be, by what all instances foretell of it."""
    waits_s = [p.ttft_s for p in predictions if p is not None]
    return bool(waits_s) and min(waits_s) > LONGEST_WAIT_S
