"""Simple predictors for comparison, with what a load balancer could know.

At a request's arrival, each sees what Foretell's predictor sees of it (the true lengths), the
outstanding requests, and the latencies of those that have ended. Each learns in the same run,
warm-up included, and predicts before it learns.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from statistics import fmean
from typing import Protocol

import numpy as np

from foretell.tools.live.recording import Served

RECENT = 32
_RIDGE = 1e-6  # keeps the equations solvable before there are as many answers as features


@dataclass(frozen=True, slots=True)
class Arriving:
    """A request at its arrival, and the outstanding ones."""

    prompt_tokens: int
    output_tokens: int
    outstanding: int
    """Requests that were sent and have not ended."""
    outstanding_tokens: int
    """Prompt and output tokens of those requests."""


class SimplePredictor(Protocol):
    """Predicts one kind of latency, in seconds."""

    def predict(self, request: Arriving) -> float:
        """The predicted latency in seconds; 0 while nothing is known."""
        ...

    def learn(self, request: Arriving, latency_s: float) -> None:
        """Learn the actual latency; called in the order in which latencies become known."""
        ...


class RecentMean:
    """The mean latency of the last `RECENT` requests that ended."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=RECENT)

    def predict(self, request: Arriving) -> float:
        return fmean(self._recent) if self._recent else 0.0

    def learn(self, request: Arriving, latency_s: float) -> None:
        self._recent.append(latency_s)


Features = Callable[[Arriving], tuple[float, ...]]


class Linear:
    """Least squares over all requests so far, never below the shortest latency seen.

    `relative`: relative errors are minimised, so an error of 10% counts as much for a short request
    as for a long one. Features are divided by about their usual size.
    """

    def __init__(self, features: Features, *, relative: bool) -> None:
        self._features = features
        self._relative = relative
        size = len(features(Arriving(1, 1, 1, 1)))
        self._products = _RIDGE * np.eye(size)
        self._targets = np.zeros(size)
        self._shortest_s = float("inf")

    def predict(self, request: Arriving) -> float:
        if self._shortest_s == float("inf"):
            return 0.0
        weights = np.linalg.solve(self._products, self._targets)
        return max(self._shortest_s, float(weights @ self._features(request)))

    def learn(self, request: Arriving, latency_s: float) -> None:
        x = np.array(self._features(request))
        weight = 1.0 / (latency_s * latency_s) if self._relative else 1.0
        self._targets += weight * latency_s * x
        self._products += weight * np.outer(x, x)
        self._shortest_s = min(self._shortest_s, latency_s)


def queue(request: Arriving) -> tuple[float, ...]:
    """The outstanding load as a balancer counts it: requests, and their tokens."""
    return (1.0, request.outstanding / 10, request.outstanding_tokens / 1000)


def roofline(request: Arriving) -> tuple[float, ...]:
    """The request's own tokens, each at a fixed cost; no queue and no batch."""
    return (1.0, request.prompt_tokens / 100, request.output_tokens / 100)


def everything(request: Arriving) -> tuple[float, ...]:
    """Both of these, and the product of output tokens and outstanding requests."""
    return (
        *roofline(request),
        *queue(request)[1:],
        request.output_tokens * request.outstanding / 1000,
    )


SIMPLE: dict[str, Callable[[], SimplePredictor]] = {
    "recent_mean": RecentMean,
    "linear_queue": lambda: Linear(queue, relative=False),
    "linear_queue_relative": lambda: Linear(queue, relative=True),
    "roofline": lambda: Linear(roofline, relative=False),
    "roofline_relative": lambda: Linear(roofline, relative=True),
    "linear_all_relative": lambda: Linear(everything, relative=True),
}


def replayed(
    requests: Sequence[Served],
    make: Callable[[], SimplePredictor],
    latency: Callable[[Served], float],
) -> list[float]:
    """The predictions of a simple predictor, each made at the arrival of its request.

    `latency` is the kind predicted; the predictor learns it once that time has passed.
    """
    predictor = make()
    found: list[float] = []
    known: list[tuple[float, int, Arriving]] = []
    under_way: list[tuple[float, int, int]] = []
    tokens = 0
    for index, request in enumerate(requests):
        now = request.decided_unix_s
        while known and known[0][0] <= now:
            _, which, arriving = heappop(known)
            predictor.learn(arriving, latency(requests[which]))
        while under_way and under_way[0][0] <= now:
            tokens -= heappop(under_way)[2]
        arriving = Arriving(request.prompt_tokens, request.output_tokens, len(under_way), tokens)
        found.append(predictor.predict(arriving))
        own = request.prompt_tokens + request.output_tokens
        tokens += own
        heappush(known, (now + latency(request), index, arriving))
        heappush(under_way, (request.last_unix_s, index, own))
    return found
