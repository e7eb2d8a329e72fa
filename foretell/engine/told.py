"""What clients are told of predicted latencies: a value to plan with, and one that nine in ten keep
to.

Placement compares means. Those are no values to tell: a few answers that may become very long raise
them above most of what will happen. Told is what the predicted quantiles were worth of late: each
is scaled by the ratio of actual to predicted that its share of the latest answers kept to (split
conformal prediction over a sliding window), which holds the share in the long run whatever is wrong
with the quantiles. Moving a factor with each answer (Gibbs and Candès, 2021) holds it too, but
swings, since answers end long after something was told of them.

The value to plan with is the median, but at most twice what one in ten keeps to, so that one in ten
is told more than twice its latency, and at least a fifth of the median.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Hashable
from math import isfinite, log1p
from typing import NamedTuple

from foretell.engine.answer import Quantiles
from foretell.model import Prediction

WINDOW = 400
"""Latest answers of a kind that count: of so many a share of 0.9 is known to 0.015."""
_FEWEST = 20  # with fewer, quantiles are taken at their word
_MOST_KINDS = 256
_LEAST_RATIO, _MOST_RATIO = 0.05, 20.0
_LEVELS = (0.1, 0.5, 0.9)
_HAZARDS = tuple(-log1p(-level) for level in _LEVELS)
_MOST_TIMES_LOW = 2.0
_LEAST_SHARE = 0.2  # of the median: a request that may start at once, or much later, is not told 0


class ToldLatency(NamedTuple):
    """Seconds that one in ten, half and nine in ten keep to."""

    low_s: float
    median_s: float
    p90_s: float

    @property
    def typical_s(self) -> float:
        """The value to plan with."""
        return min(self.median_s, max(_MOST_TIMES_LOW * self.low_s, _LEAST_SHARE * self.median_s))

    def left(self, passed_s: float) -> "ToldLatency":
        """What is left of it, for a request of which so many seconds have passed.

        The cumulative hazard is taken to be straight between these values and beyond the last.
        """
        hazards, seconds = (0.0, *_HAZARDS), (0.0, *self)
        had = _straight(seconds, hazards, passed_s)
        low_s, median_s, p90_s = (
            max(0.0, _straight(hazards, seconds, had + hazard) - passed_s) for hazard in _HAZARDS
        )
        return ToldLatency(low_s, median_s, p90_s)


class Told(NamedTuple):
    """What a client is told of one request, from the moment of its prediction."""

    ttft: ToldLatency
    e2e: ToldLatency


class Calibration:
    """Learns from finished requests what predicted quantiles are worth, for each kind of request.

    A kind is whatever makes predictions go wrong alike, such as a model. Memory is bounded: the
    kind that was observed least recently makes room. Deterministic; not thread-safe.
    """

    def __init__(self) -> None:
        self._kinds: dict[Hashable, tuple[_Latency, _Latency]] = {}  # least recent first

    def tell(self, kind: Hashable, prediction: Prediction) -> Told | None:
        """None for a prediction without quantiles."""
        if not prediction.ttft_quantiles or not prediction.e2e_quantiles:
            return None
        ttft, e2e = self._kinds.get(kind) or (_Latency(), _Latency())
        return Told(ttft.tell(prediction.ttft_quantiles), e2e.tell(prediction.e2e_quantiles))

    def observe(
        self, kind: Hashable, prediction: Prediction, ttft_s: float | None, e2e_s: float
    ) -> None:
        """Learn from the latencies of a request that ended by itself: one that was abandoned says
        nothing. A `ttft_s` of None is not known well enough."""
        known = self._kinds.pop(kind, None) or (_Latency(), _Latency())
        self._kinds[kind] = known
        if len(self._kinds) > _MOST_KINDS:
            del self._kinds[next(iter(self._kinds))]
        ttft, e2e = known
        e2e.observe(prediction.e2e_quantiles, e2e_s)
        if ttft_s is not None:
            ttft.observe(prediction.ttft_quantiles, ttft_s)


class _Latency:
    """One latency of one kind of request."""

    def __init__(self) -> None:
        self._ratios = tuple(map(_Ratios, _LEVELS))

    def tell(self, quantiles: Quantiles) -> ToldLatency:
        predicted = dict(quantiles)
        low_s, median_s, p90_s = (each.factor() * predicted[each.level] for each in self._ratios)
        median_s = max(low_s, median_s)
        return ToldLatency(low_s, median_s, max(median_s, p90_s))

    def observe(self, quantiles: Quantiles, actual_s: float) -> None:
        predicted = dict(quantiles)
        for ratios in self._ratios:
            predicted_s = predicted.get(ratios.level, 0.0)
            if isfinite(predicted_s) and predicted_s > 0:
                ratios.add(actual_s / predicted_s)


class _Ratios:
    """The latest ratios of what happened to one predicted quantile."""

    __slots__ = ("_latest", "_ordered", "level")

    def __init__(self, level: float) -> None:
        self.level = level
        self._latest = deque[float]()
        self._ordered: list[float] = []

    def add(self, ratio: float) -> None:
        ratio = min(max(ratio, _LEAST_RATIO), _MOST_RATIO)
        self._latest.append(ratio)
        insort(self._ordered, ratio)
        if len(self._latest) > WINDOW:
            del self._ordered[bisect_left(self._ordered, self._latest.popleft())]

    def factor(self) -> float:
        """The ratio that the next one keeps to with the probability `level`, if it is like them."""
        count = len(self._ordered)
        if count < _FEWEST:
            return 1.0
        place = min(max(self.level * (count + 1) - 1.0, 0.0), count - 1.0)
        before, part = int(place), place % 1.0
        after = min(before + 1, count - 1)
        return self._ordered[before] + part * (self._ordered[after] - self._ordered[before])


def _straight(xs: tuple[float, ...], ys: tuple[float, ...], x: float) -> float:
    """y at x on straight lines through ascending points, going on beyond the last as before it."""
    at = min(bisect_left(xs, x, 1), len(xs) - 1)
    width = xs[at] - xs[at - 1]
    part = (x - xs[at - 1]) / width if width > 0 else 1.0
    return ys[at - 1] + part * (ys[at] - ys[at - 1])
