"""Predicts when a batch will be done, from the work that is left and the requests in flight.

Work is counted in tokens, not in requests. The tokens of requests that have not ended are predicted
from those that have. Each request in flight is expected to get as many tokens per second as lately.
The number in flight is expected to grow as fast as `release` allows, up to the number at which it
stopped growing before. After the last request is sent, those in flight still take time to end.

This gives the expected time. Its deviation is estimated, too: from the spread of lengths, by the
central limit theorem, and from how the pace has varied. A promise adds the multiple of it that
covered the named share of earlier batches: split conformal prediction with normalised scores (Lei
et al., Distribution-free predictive inference for regression, 2018, section 5.2).
"""

from collections import deque
from dataclasses import dataclass
from math import ceil, log, sqrt
from statistics import NormalDist
from typing import NamedTuple

from foretell.batch.release import LARGEST_WINDOW, LOOK_S, most_after
from foretell.batch.tuning import PROMISE

CONFIDENCE = 0.9
"""The share of batches that shall have ended by the promised time."""


@dataclass(frozen=True, slots=True)
class BatchLengths:
    """The number of a batch's requests that have ended, and the sum and squares of their tokens."""

    ended: int = 0
    tokens: float = 0.0
    squares: float = 0.0

    def with_more(self, tokens: int) -> "BatchLengths":
        """These lengths with one more request."""
        return BatchLengths(self.ended + 1, self.tokens + tokens, self.squares + tokens * tokens)

    @property
    def mean(self) -> float:
        return self.tokens / self.ended

    @property
    def variation(self) -> float:
        """The standard deviation of one request's tokens, as a share of their mean."""
        return sqrt(max(0.0, self.squares / self.ended - self.mean**2)) / self.mean


class _Interval(NamedTuple):
    tokens: float
    request_s: float
    """Requests in flight, integrated over the interval, in request-seconds."""
    seconds: float


class BatchPace:
    """What requests in flight have done in each interval of the last minutes."""

    def __init__(self) -> None:
        self._intervals: deque[_Interval] = deque(maxlen=PROMISE.intervals)
        self._steady: deque[float] = deque(maxlen=PROMISE.intervals)
        """Requests in flight in those intervals in which their number did not grow."""
        self._largest = 0.0
        self._before = 0.0

    def add(self, tokens: float, request_s: float, seconds: float) -> None:
        """Add an interval: tokens done, request-seconds in flight, and its length in seconds."""
        assert seconds > 0, "intervals have a length"
        self._intervals.append(_Interval(tokens, request_s, seconds))
        requests = request_s / seconds
        if requests <= self._before * (1.0 + PROMISE.steady_ratio):
            self._steady.append(max(requests, self._before))
        self._before = requests

    def pause(self) -> None:
        """Nothing is in flight: growth starts from 0 again."""
        self._before = 0.0

    @property
    def known(self) -> bool:
        enough = len(self._intervals) >= PROMISE.least_intervals
        return enough and any(each.tokens for each in self._intervals)

    @property
    def each_per_s(self) -> float:
        """Tokens per second of one request in flight."""
        request_s = sum(each.request_s for each in self._intervals)
        return sum(each.tokens for each in self._intervals) / request_s

    @property
    def steady(self) -> float:
        """The mean number of requests in flight when it does not grow; the largest window while
        this is not known."""
        return sum(self._steady) / len(self._steady) if self._steady else LARGEST_WINDOW

    @property
    def deviation_ratio(self) -> float:
        """The standard deviation of the steady number of requests in flight, as a share of it."""
        if len(self._steady) < 2:
            return 0.0
        mean = self.steady
        squares = sum((each - mean) ** 2 for each in self._steady) / len(self._steady)
        return sqrt(squares) / mean


class Expected(NamedTuple):
    """When work is expected to be done, before a correction by earlier errors."""

    seconds: float
    off_ratio: float
    """The estimated standard deviation of `seconds`, as a share of them."""


def expected(
    left: int, before: float, lengths: BatchLengths, pace: BatchPace, now: float
) -> Expected | None:
    """Predict when `left` requests will have ended, after `before` tokens of earlier batches.

    `now` requests are in flight. None while too little is known.
    """
    if not left:
        return Expected(0.0, 0.0)
    if not pace.known or lengths.ended < PROMISE.least_ended:
        return None
    each_per_s, most = pace.each_per_s, max(1.0, pace.steady)
    requests = left + before / lengths.mean
    each_s = lengths.mean / each_per_s
    # The last `most` requests, or all, are in flight together until the longest one ends.
    last = min(requests, most)
    tail_s = each_s * (1.0 + lengths.variation * sqrt(2.0 * log(max(1.0, last))))
    seconds, sent = 0.0, 0.0
    on_their_way = min(most, max(1.0, now))
    while on_their_way < most and sent + on_their_way < requests:
        sent += on_their_way * LOOK_S / each_s
        seconds += LOOK_S
        on_their_way = min(most, most_after(on_their_way))
    seconds += max(0.0, requests - sent - on_their_way) * each_s / on_their_way + tail_s
    lengths_off = lengths.variation * sqrt(1.0 / left + 1.0 / lengths.ended)
    pace_off = pace.deviation_ratio * sqrt(PROMISE.steady_s / (PROMISE.steady_s + seconds))
    return Expected(seconds, max(PROMISE.least_ratio, sqrt(lengths_off**2 + pace_off**2)))


class Correction:
    """Learns from earlier batches how many deviations to allow for, at the given confidence."""

    def __init__(self, confidence: float = CONFIDENCE) -> None:
        self._confidence = confidence
        self._scores: deque[float] = deque(maxlen=PROMISE.corrected_by)

    def learn(self, estimate: Expected, took_s: float) -> None:
        """Learn from a batch that has ended after `took_s`."""
        expected_s = max(estimate.seconds, PROMISE.least_expected_s)
        self._scores.append(
            (took_s / expected_s - 1.0) / max(estimate.off_ratio, PROMISE.least_ratio)
        )

    def promised_s(self, estimate: Expected) -> float:
        """Seconds within which the batch will have ended, at the given confidence.

        While too few batches have ended for this quantile, it allows for `few_factor` times the
        largest error so far, or times a normal error if that is larger.
        """
        rank = ceil(self._confidence * (len(self._scores) + 1))
        if rank <= len(self._scores):
            times = sorted(self._scores)[rank - 1]
        else:
            usual = NormalDist().inv_cdf(self._confidence)
            times = PROMISE.few_factor * max(usual, *self._scores, usual)
        return max(0.0, estimate.seconds * (1.0 + times * estimate.off_ratio))
