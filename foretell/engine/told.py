"""Predicted latencies as clients get them: a value to plan with, and one that nine in ten keep
to.

Placement compares means. Those are no values to tell: a few answers that may become very long raise
them above most of what will happen. Told is what the predicted quantiles were worth of late: each
is scaled by the ratio of actual to predicted that its share of the latest answers kept to (split
conformal prediction over a sliding window), which holds the share in the long run whatever is wrong
with the quantiles. Moving a factor with each answer (Gibbs and Candès, 2021) holds it too, but
swings, since answers end long after something was told of them.

An answer that nobody waited for to its end counts as one that took longer than it was waited for
(Kaplan and Meier, 1958): to leave such answers out would tell too little, since long ones are left
more often. That is right where those that are left at some moment would have gone on as others do.
So do requests that are under way while there are few answers: the first to end are short.

The value to plan with is the median, or a multiple of the predicted 0.1 quantile where that is
less, but at least a fifth of the median. The multiple is the one with which one in ten of the
latest answers would have been promised more than twice its latency.

Where the length is estimated once more after the placement, the latencies follow it: a client that
has no byte yet gets those by the better estimate.
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
"""Latest answers of a kind that count: of so many a share of 0.9 is known to 0.015."""
_MOST_UNDER_WAY = 256  # the oldest: they tell most
_FEWEST = 20  # with fewer, quantiles are taken at their word
_MOST_KINDS = 256
_LEAST_RATIO, _MOST_RATIO = 0.05, 20.0
_LEVELS = (0.1, 0.5, 0.9)
_HAZARDS = tuple(-log1p(-level) for level in _LEVELS)
_MORE_THAN_TWICE = 0.1  # the share that may be told more than twice its latency
_LEAST_SHARE = 0.2  # of the median: a request that may start at once, or much later, is not told 0


class ToldLatency(NamedTuple):
    """Seconds that one in ten, half and nine in ten keep to, and the value to plan with."""

    low_s: float
    median_s: float
    p90_s: float
    typical_s: float

    def left(self, passed_s: float) -> "ToldLatency":
        """What is left of it, for a request of which so many seconds have passed.

        The cumulative hazard is taken to be straight between these values and beyond the last.
        """
        hazards, seconds = (0.0, *_HAZARDS), (0.0, *self[:3])
        had = _straight(seconds, hazards, passed_s)
        low_s, median_s, p90_s = (
            max(0.0, _straight(hazards, seconds, had + hazard) - passed_s) for hazard in _HAZARDS
        )
        return ToldLatency(low_s, median_s, p90_s, median_s)


class Told(NamedTuple):
    """What a client gets for one request, from the moment of its prediction."""

    ttft: ToldLatency
    e2e: ToldLatency


class Seen(NamedTuple):
    """A latency as far as it was seen."""

    seconds: float
    whole: bool = True
    """Otherwise it would have been longer than these seconds."""


UnderWay = Callable[[], Iterable[tuple[Prediction, float]]]
"""The predictions of requests that have not ended, the oldest first, and their ages in seconds."""


class Calibration:
    """Learns from finished requests what predicted quantiles are worth, for each kind of request.

    A kind is whatever makes predictions go wrong alike, such as a model. Memory is bounded: the
    kind that was observed least recently makes room. Deterministic; not thread-safe.
    """

    def __init__(self) -> None:
        self._kinds: dict[Hashable, tuple[_Latency, _Latency]] = {}  # least recent first

    def tell(
        self, kind: Hashable, prediction: Prediction, under_way: UnderWay = tuple
    ) -> Told | None:
        """None for a prediction without quantiles before there are answers to such. `under_way`:
        the others of its kind."""
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
        return Told(ttft.tell(of_ttft), e2e.tell(of_e2e, cut))

    def observe(self, kind: Hashable, prediction: Prediction, ttft: Seen | None, e2e: Seen) -> None:
        """Learn from the latencies of a request that has ended; a `ttft` of None is not known well
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
    """A prediction that was made with the estimate `was`, as it were with `length`.

    From the first token on it takes as much longer as the length at the same level is longer.
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
    """Of TTFT and e2e latency. One rollout, for lack of time, has none: there all are what it
    says, and the answers to such predictions tell how far quantiles are from that."""
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
        """Of half the latency to the lowest quantile, where the median is more than twice it."""

    @property
    def is_known(self) -> bool:
        """There are answers enough to say what quantiles are worth."""
        return all(each.is_known for each in self._ratios)

    @property
    def is_full(self) -> bool:
        """There are so many that those under way would change nothing."""
        return self._ratios[0].count >= WINDOW

    def tell(
        self, quantiles: Quantiles, cut: Sequence[tuple[dict[float, float], float]] = ()
    ) -> ToldLatency:
        """`cut`: predicted quantiles, and what has passed of the latency."""
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
        return ToldLatency(low_s, median_s, max(median_s, p90_s), typical_s)

    def observe(self, quantiles: Quantiles, seen: Seen) -> None:
        predicted = dict(quantiles)
        low, median, _ = self._ratios
        if median.factor() * predicted.get(median.level, 0.0) <= 2.0 * seen.seconds:
            self._halves.add(_MOST_RATIO, whole=True)  # no multiple would be too much
        else:
            self._halves.see(predicted[low.level], seen)
        for ratios in self._ratios:
            ratios.see(predicted.get(ratios.level, 0.0), seen)


class _Ratios:
    """The latest ratios of what happened to one predicted quantile."""

    __slots__ = ("_cut", "_latest", "_whole", "level")

    def __init__(self, level: float) -> None:
        self.level = level
        self._latest = deque[tuple[float, bool]]()
        self._whole: list[float] = []  # in their order
        self._cut: list[float] = []  # those that would have been larger, in their order

    def see(self, predicted_s: float, seen: Seen) -> None:
        """Where the prediction says anything, add the ratio of what was seen to it."""
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
        """The ratio that the next one keeps to with the probability `level`, if it is like them.
        `more_cut`: ratios that will be larger, too."""
        if not self.is_known:
            return 1.0
        whole, count = self._whole, self.count + len(more_cut)
        cut = sorted([*self._cut, *more_cut]) if more_cut else self._cut
        # Of so many the ratio is below it; each that was cut gives its weight to all above it.
        wanted, passed, weight = self.level * (count + 1), 0, 1.0
        for number, ratio in enumerate(cut):
            below = bisect_right(whole, ratio, passed)
            if (below - passed) * weight >= wanted or below == len(whole):
                break
            wanted -= (below - passed) * weight
            passed, left = below, count - below - number
            weight *= left / (left - 1)
        place = max(0.0, passed + wanted / weight - 1.0)
        if place > len(whole) - 1:  # so many have not been seen to end
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
    """y at x on straight lines through ascending points, going on beyond the last as before it."""
    at = min(bisect_left(xs, x, 1), len(xs) - 1)
    width = xs[at] - xs[at - 1]
    part = (x - xs[at - 1]) / width if width > 0 else 1.0
    return ys[at - 1] + part * (ys[at] - ys[at - 1])
