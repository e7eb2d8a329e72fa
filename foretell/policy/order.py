"""The order in which engines that admit by priority serve requests: the largest last."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable

from foretell.model import Prediction, RequestSpec

WINDOW = 1000
"""The number of latest requests with which the size of a new one is compared."""
LARGEST = 0.05
"""The share of requests, the largest ones, that others may overtake."""
PAYS = 0.25
"""The least share of the total size that these must have. If sizes differ less, the requests that
overtake gain less than the overtaken ones lose."""
OVERTAKEN_PART = 0.1
"""Requests may overtake a large one if they arrive within this part of its predicted decoding
time; none may if its own predicted wait is longer than that."""
_LEAST_KNOWN = 100
_FIRST_PRIORITY, _LAST_PRIORITY = -(2**31), 2**31 - 1  # vLLM's bounds; a lower number goes first


class LargestLast:
    """Finds the requests that are among the largest of the last `WINDOW`, where that pays.

    The size of a request is the KV tokens that it will hold times the steps for which it holds
    them: `output * (prompt + output / 2)`, with its expected output. If memory is short, a few
    large requests keep many small ones waiting, and cause preemptions. Serving them when no others
    wait costs them a few seconds of the half minute that they take anyway. This is the mildest form
    of *shortest job first*, and pays where few requests hold most of the memory.

    Engines must admit by priority (vLLM's `--scheduling-policy priority`). Deterministic given the
    earlier requests.
    """

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self._ascending: list[float] = []
        self._total = 0.0

    def ranked(self, request: RequestSpec) -> RequestSpec:
        """Return `request`, behind others of its priority if it is one of the largest and that
        pays. The first `_LEAST_KNOWN` requests keep their priority. Its size is remembered.
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
    """Whether a request should not go last because its predicted waits are too long everywhere."""
    known = [p for p in predictions if p is not None]
    return bool(known) and all(p.ttft_s > OVERTAKEN_PART * (p.e2e_s - p.ttft_s) for p in known)


def later(request: RequestSpec) -> RequestSpec:
    """Return `request` with the next lower priority, which is a higher number."""
    return request._replace(priority=min(request.priority + 1, _LAST_PRIORITY))


def sooner(request: RequestSpec) -> RequestSpec:
    """Return `request` with the next higher priority, which is a lower number."""
    return request._replace(priority=max(request.priority - 1, _FIRST_PRIORITY))


def size_of(request: RequestSpec) -> float:
    """Return the expected KV tokens times steps, over all its sequences."""
    output = request.length.expected_tokens
    return request.sequences * output * (request.prompt_tokens + output / 2.0)
