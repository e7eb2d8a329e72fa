"""The order in which engines serve, where they admit by priority: the largest requests last."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable

from foretell.model import Prediction, RequestSpec

WINDOW = 1000
"""Requests that a new request's size is compared with."""
LARGEST = 0.05
"""The part of the requests, the largest, that others may overtake."""
PAYS = 0.25
"""The part of all KV tokens times steps that these must hold: where sizes differ less, those who
overtake gain less than those who are overtaken lose."""
OVERTAKEN_PART = 0.1
"""Others may overtake a large request that come within this part of its predicted decoding
time; none may if its own predicted wait is longer than that."""
_LEAST_KNOWN = 100
_FIRST_PRIORITY, _LAST_PRIORITY = -(2**31), 2**31 - 1  # vLLM's bounds; a lower number goes first


class LargestLast:
    """Finds the requests that are among the largest of the last `WINDOW`, where that pays.

    A request is as large as the KV tokens that it will hold, times the steps it holds them for:
    `output * (prompt + output / 2)`, with its expected output. Where memory is short, a few large
    requests keep many small ones waiting, and are what preemptions make room for; to serve them
    when nobody else waits costs them some seconds of the half minute that they take anyway. It is
    the mildest form of *shortest job first*, and pays where few requests hold the memory.

    Engines must admit by priority (vLLM's `--scheduling-policy priority`). Deterministic given the
    requests before.
    """

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self._ascending: list[float] = []
        self._total = 0.0

    def ranked(self, request: RequestSpec) -> RequestSpec:
        """`request`, its priority one lower if it is one of the largest and that pays; the first
        ones never are.

        Its size is remembered.
        """
        size = size_of(request)
        last = self._goes_last(size)
        self._remember(size)
        return later(request) if last else request

    def _goes_last(self, size: float) -> bool:
        known = len(self._ascending)
        if known < _LEAST_KNOWN or bisect_left(self._ascending, size) < (1.0 - LARGEST) * known:
            return False
        largest = self._ascending[int((1.0 - LARGEST) * known) :]
        return sum(largest) >= PAYS * self._total

    def _remember(self, size: float) -> None:
        insort(self._ascending, size)
        self._recent.append(size)
        self._total += size
        if len(self._recent) > WINDOW:
            oldest = self._recent.popleft()
            self._total -= oldest
            del self._ascending[bisect_left(self._ascending, oldest)]


def costs_too_much(predictions: Iterable[Prediction | None]) -> bool:
    """Whether a request that would go last should not, by what all instances foretell of it."""
    known = [p for p in predictions if p is not None]
    return bool(known) and all(p.ttft_s > OVERTAKEN_PART * (p.e2e_s - p.ttft_s) for p in known)


def later(request: RequestSpec) -> RequestSpec:
    """`request` behind those of its own priority."""
    return request._replace(priority=min(request.priority + 1, _LAST_PRIORITY))


def sooner(request: RequestSpec) -> RequestSpec:
    """`request` before those of its own priority."""
    return request._replace(priority=max(request.priority - 1, _FIRST_PRIORITY))


def size_of(request: RequestSpec) -> float:
    """KV tokens times steps, as far as is known before."""
    output = request.length.expected_tokens
    return request.sequences * output * (request.prompt_tokens + output / 2.0)
