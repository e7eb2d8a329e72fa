"""Predicted latencies for clients: a typical value to plan with, and calibrated quantiles.

Placement compares means. Clients do not get means: a few answers that may become very long raise
them above most outcomes. Clients get calibrated quantiles. Each predicted quantile is multiplied
by the ratio of actual to predicted latency that its share of the latest answers did not exceed
(split conformal prediction over a sliding window). In the long run this keeps the share, whatever
is wrong with the quantiles. Adapting a factor with each answer (Gibbs and Candès, 2021) keeps it
too, but oscillates, since answers end long after their quantiles were stated.

An answer that the client cancelled is right-censored: it would have taken longer than it did
(Kaplan and Meier, 1958). Without such answers quantiles would be too low, since long answers are
cancelled more often. This is unbiased if answers that are cancelled at some time would have gone on
like the others. While there are few answers, requests under way count as right-censored, too: the
first ones to end are short.

The typical value is the median, or a multiple of the predicted 0.1 quantile if that is less, but at
least a fifth of the median. With this multiple, one in ten of the latest answers would have been
promised more than twice its latency.

If the length is estimated again after the placement, the latencies follow it (`with_length`).
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import islice
from math import isfinite, log1p
from typing import NamedTuple

from foretell.engine.answer import Quantiles
from foretell.model import LengthEstimate, Prediction

WINDOW = 400
"""The latest answers of a kind that count. Of so many a share of 0.9 is known to 0.015."""
_MOST_UNDER_WAY = 256  # the oldest ones, which say most
_FEWEST = 20  # with fewer answers, quantiles are not scaled
_MOST_KINDS = 256
_LEAST_RATIO, _MOST_RATIO = 0.05, 20.0
_LEVELS = (0.1, 0.5, 0.9)
_HAZARDS = tuple(-log1p(-level) for level in _LEVELS)
_MORE_THAN_TWICE = 0.1  # the share of answers that may be promised more than twice their latency
_LEAST_SHARE = 0.2  # of the median, so that the typical value of a short 0.1 quantile is not near 0


class AnnouncedLatency(NamedTuple):
    """Seconds that one in ten, half and nine in ten do not exceed, and the value to plan with."""

    low_s: float
    median_s: float
    p90_s: float
    typical_s: float

    def left(self, passed_s: float) -> "AnnouncedLatency":
        """The remaining latency of a request after `passed_s` seconds.

        The cumulative hazard is assumed to be linear between these values and beyond the last.
        """
        hazards, seconds = (0.0, *_HAZARDS), (0.0, *self[:3])
        had = _straight(seconds, hazards, passed_s)
        low_s, median_s, p90_s = (
            max(0.0, _straight(hazards, seconds, had + hazard) - passed_s) for hazard in _HAZARDS
        )
        return AnnouncedLatency(low_s, median_s, p90_s, median_s)


class Announced(NamedTuple):
    """The latencies that a client gets for one request, counted from its prediction."""

    ttft: AnnouncedLatency
    e2e: AnnouncedLatency


class ObservedLatency(NamedTuple):
    """An observed latency, perhaps right-censored."""

    seconds: float
    whole: bool = True
    """False if right-censored: the latency would have been longer than these seconds."""


UnderWay = Callable[[], Iterable[tuple[Prediction, float]]]
"""The predictions of requests that have not ended, the oldest first, and their ages in seconds."""


class Calibration:
    """Calibrates predicted quantiles by finished requests, separately for each kind of request.

    Requests of one kind should have similar errors of predictions, such as those of one model.
    Memory is bounded by LRU eviction of kinds. Deterministic; not thread-safe.
    """

    def __init__(self) -> None:
        self._kinds: dict[Hashable, tuple[_Latency, _Latency]] = {}  # least recent first

    def tell(
        self, kind: Hashable, prediction: Prediction, under_way: UnderWay = tuple
    ) -> Announced | None:
        """The calibrated latencies; None for a prediction without quantiles until there are enough
        answers to such. `under_way`: the other requests of its kind."""
        ttft, e2e = self._kinds.get(_kind(kind, prediction)) or (_Latency(), _Latency())
        has_quantiles = _has_quantiles(prediction)
        if not has_quantiles and not (ttft.is_known and e2e.is_known):
            return None
        of_ttft, of_e2e = _quantiles(prediction)
        others = islice(under_way(), _MOST_UNDER_WAY) if e2e.is_known and not e2e.is_full else ()
        cut = [
            (dict(_quantiles(each)[1]), seconds)
            for each, seconds in others
            if _has_quantiles(each) == has_quantiles
        ]
        return Announced(ttft.tell(of_ttft), e2e.tell(of_e2e, cut))

    def observe(
        self,
        kind: Hashable,
        prediction: Prediction,
        ttft: ObservedLatency | None,
        e2e: ObservedLatency,
    ) -> None:
        """Learn from the latencies of a request that has ended; `ttft` is None if not known well
        enough."""
        kind = _kind(kind, prediction)
        latencies = self._kinds.pop(kind, None) or (_Latency(), _Latency())
        self._kinds[kind] = latencies
        if len(self._kinds) > _MOST_KINDS:
            del self._kinds[next(iter(self._kinds))]
        for latency, quantiles, seen in zip(
            latencies, _quantiles(prediction), (ttft, e2e), strict=True
        ):
            if seen is not None:
                latency.observe(quantiles, seen)


def with_length(prediction: Prediction, was: LengthEstimate, length: LengthEstimate) -> Prediction:
    """Convert a prediction made with the estimate `was` to one with `length`.

    The time after the first token is scaled by the ratio of the lengths at the same level.
    """
    longer = max(length.expected_tokens, 1.0) / max(was.expected_tokens, 1.0)
    before, now, ttft = dict(was.quantiles), dict(length.quantiles), dict(prediction.ttft_quantiles)
    quantiles = []
    for level, e2e_s in prediction.e2e_quantiles:
        if level in before and level in now:
            at_level = max(now[level], 1.0) / max(before[level], 1.0)
        else:
            at_level = longer
        first_s = ttft.get(level, prediction.ttft_s)
        quantiles.append((level, first_s + at_level * max(0.0, e2e_s - first_s)))
    e2e_s = prediction.ttft_s + longer * (prediction.e2e_s - prediction.ttft_s)
    return prediction._replace(e2e_s=e2e_s, e2e_quantiles=tuple(quantiles))


def _has_quantiles(prediction: Prediction) -> bool:
    return bool(prediction.ttft_quantiles and prediction.e2e_quantiles)


def _kind(kind: Hashable, prediction: Prediction) -> Hashable:
    return kind, _has_quantiles(prediction)


def _quantiles(prediction: Prediction) -> tuple[Quantiles, Quantiles]:
    """The quantiles of TTFT and e2e latency. A prediction by one rollout has none: then its value
    stands for each of them, and calibration learns how far the quantiles are from it."""
    if _has_quantiles(prediction):
        return prediction.ttft_quantiles, prediction.e2e_quantiles
    ttft, e2e = (
        tuple((level, seconds) for level in _LEVELS)
        for seconds in (prediction.ttft_s, prediction.e2e_s)
    )
    return ttft, e2e


class _Latency:
    """One latency of one kind of request."""

    def __init__(self) -> None:
        self._ratios = tuple(map(_Ratios, _LEVELS))
        self._halves = _Ratios(_MORE_THAN_TWICE)
        """Ratios of half the latency to the lowest quantile, if the median is more than twice the
        latency."""

    @property
    def is_known(self) -> bool:
        """Whether there are enough answers to scale quantiles."""
        return all(each.is_known for each in self._ratios)

    @property
    def is_full(self) -> bool:
        """Whether the window is full, so that requests under way need not count."""
        return self._ratios[0].count >= WINDOW

    def tell(
        self, quantiles: Quantiles, cut: Sequence[tuple[dict[float, float], float]] = ()
    ) -> AnnouncedLatency:
        """`cut`: of each request under way, its predicted quantiles and the seconds passed."""
        predicted = dict(quantiles)
        low_s, median_s, p90_s = (
            each.factor([_ratio(seconds, of.get(each.level, 0.0)) for of, seconds in cut])
            * predicted[each.level]
            for each in self._ratios
        )
        median_s = max(low_s, median_s)
        typical_s, times = median_s, self._halves.factor()
        if times < _MOST_RATIO:
            most_s = 2.0 * times * predicted[_LEVELS[0]]
            typical_s = min(median_s, max(most_s, _LEAST_SHARE * median_s))
        return AnnouncedLatency(low_s, median_s, max(median_s, p90_s), typical_s)

    def observe(self, quantiles: Quantiles, seen: ObservedLatency) -> None:
        predicted = dict(quantiles)
        low, median, _ = self._ratios
        if median.factor() * predicted.get(median.level, 0.0) <= 2.0 * seen.seconds:
            self._halves.add(_MOST_RATIO, whole=True)  # no multiple would exceed twice the latency
        else:
            self._halves.see(predicted[low.level], seen)
        for ratios in self._ratios:
            ratios.see(predicted.get(ratios.level, 0.0), seen)


class _Ratios:
    """The latest ratios of actual latencies to one predicted quantile."""

    __slots__ = ("_cut", "_latest", "_whole", "level")

    def __init__(self, level: float) -> None:
        self.level = level
        self._latest = deque[tuple[float, bool]]()
        self._whole: list[float] = []  # ascending
        self._cut: list[float] = []  # right-censored ones, ascending

    def see(self, predicted_s: float, seen: ObservedLatency) -> None:
        """Add the ratio of `seen` to the prediction, if that is finite and positive."""
        if isfinite(predicted_s) and predicted_s > 0:
            self.add(_ratio(seen.seconds, predicted_s), whole=seen.whole)

    def add(self, ratio: float, *, whole: bool) -> None:
        self._latest.append((ratio, whole))
        insort(self._of(whole), ratio)
        if len(self._latest) > WINDOW:
            oldest, was_whole = self._latest.popleft()
            ratios = self._of(was_whole)
            del ratios[bisect_left(ratios, oldest)]

    @property
    def count(self) -> int:
        return len(self._latest)

    @property
    def is_known(self) -> bool:
        return len(self._whole) >= _FEWEST

    def factor(self, more_cut: Sequence[float] = ()) -> float:
        """The `level` quantile of the next ratio (Kaplan-Meier).

        `more_cut`: ratios of requests under way, right-censored, too."""
        if not self.is_known:
            return 1.0
        whole, count = self._whole, self.count + len(more_cut)
        cut = sorted([*self._cut, *more_cut]) if more_cut else self._cut
        # `wanted` is the weight below the quantile. A cut ratio gives its weight to all above it.
        wanted, passed, weight = self.level * (count + 1), 0, 1.0
        for number, ratio in enumerate(cut):
            below = bisect_right(whole, ratio, passed)
            if (below - passed) * weight >= wanted or below == len(whole):
                break
            wanted -= (below - passed) * weight
            passed, left = below, count - below - number
            weight *= left / (left - 1)
        place = max(0.0, passed + wanted / weight - 1.0)
        if place > len(whole) - 1:  # the quantile is beyond the largest whole ratio
            return max(whole[-1:] + cut[-1:])
        before, part = int(place), place % 1.0
        after = min(before + 1, len(whole) - 1)
        return whole[before] + part * (whole[after] - whole[before])

    def _of(self, whole: bool) -> list[float]:
        return self._whole if whole else self._cut


def _ratio(seconds: float, predicted_s: float) -> float:
    if not (isfinite(predicted_s) and predicted_s > 0):
        return _LEAST_RATIO
    return min(max(seconds / predicted_s, _LEAST_RATIO), _MOST_RATIO)


def _straight(xs: tuple[float, ...], ys: tuple[float, ...], x: float) -> float:
    """Linear interpolation at x through ascending points, extrapolated beyond the last."""
    at = min(bisect_left(xs, x, 1), len(xs) - 1)
    width = xs[at] - xs[at - 1]
    part = (x - xs[at - 1]) / width if width > 0 else 1.0
    return ys[at - 1] + part * (ys[at] - ys[at - 1])
