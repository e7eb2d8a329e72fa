"""When a batch will be done: work that is left, over the pace at which work is done.

Work is counted in tokens, not in requests. The tokens of requests that have not ended are
foretold from those that have: the mean of their sum, and how far it may be off, by the central
limit theorem. The pace is that of the recent past. It may stay off by as much as it has varied from
one interval to the next, because online load, which moves it, changes slowly.

What is foretold of a new batch is corrected by how earlier batches have ended: the share of them
that the confidence names took at most so many times as long as was foretold.
"""

from collections import deque
from dataclasses import dataclass
from math import ceil, inf, sqrt
from statistics import NormalDist, fmean, pvariance

CONFIDENCE = 0.9
"""The share of batches that shall have ended by the time that is promised."""
_INTERVALS = 30
_LEAST_INTERVALS = 3
_LEAST_ENDED = 10
_SLOWEST_RATIO = 0.8
_CORRECTED_BY = 50
_LEAST_FORETOLD_S = 1.0


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of the requests of a batch that have ended: how many, their sum and squares."""

    ended: int = 0
    tokens: float = 0.0
    squares: float = 0.0

    def with_more(self, tokens: int) -> "Lengths":
        """These lengths with one more request."""
        return Lengths(self.ended + 1, self.tokens + tokens, self.squares + tokens * tokens)

    @property
    def mean(self) -> float:
        return self.tokens / self.ended

    @property
    def variance(self) -> float:
        """The variance of one request's tokens."""
        return max(0.0, self.squares / self.ended - self.mean**2)


class Pace:
    """Tokens per second of all offline work, from one interval to the next."""

    def __init__(self) -> None:
        self._rates: deque[float] = deque(maxlen=_INTERVALS)

    def add(self, tokens: float, seconds: float) -> None:
        """So many tokens were done in an interval."""
        assert seconds > 0, "intervals have a length"
        self._rates.append(tokens / seconds)

    @property
    def known(self) -> bool:
        return len(self._rates) >= _LEAST_INTERVALS and fmean(self._rates) > 0

    @property
    def mean(self) -> float:
        return fmean(self._rates)

    @property
    def deviation_ratio(self) -> float:
        """The standard deviation of the pace, as a share of its mean."""
        return sqrt(pvariance(self._rates)) / self.mean


class Correction:
    """How many times as long as foretold batches take, with the confidence."""

    def __init__(self, confidence: float = CONFIDENCE) -> None:
        self._confidence = confidence
        self._ratios: deque[float] = deque(maxlen=_CORRECTED_BY)

    def learn(self, foretold_s: float, took_s: float) -> None:
        """A batch has ended."""
        self._ratios.append(took_s / max(foretold_s, _LEAST_FORETOLD_S))

    @property
    def ratio(self) -> float:
        """1 while too few have ended: a rank beyond the longest would be needed."""
        rank = ceil(self._confidence * (len(self._ratios) + 1))
        return sorted(self._ratios)[rank - 1] if rank <= len(self._ratios) else 1.0


def seconds_left(
    left: int, before: float, lengths: Lengths, pace: Pace, confidence: float = CONFIDENCE
) -> float:
    """Seconds within which `left` requests will have ended, with this probability.

    `before`: tokens of batches that come first. Infinite while too little is known.
    """
    if not left:
        return 0.0
    if not pace.known or lengths.ended < _LEAST_ENDED:
        return inf
    mean = before + left * lengths.mean
    # What is left is a sum, and its mean was itself learnt from the requests that have ended.
    spread = sqrt(lengths.variance * (left + left * left / lengths.ended)) / mean
    z = NormalDist().inv_cdf(confidence)
    # A pace below the mean by a share r takes 1 / (1 - r) times as long.
    slow = min(_SLOWEST_RATIO, z * pace.deviation_ratio)
    return mean * (1.0 + z * spread) / (pace.mean * (1.0 - slow))
