"""An output length as one of some bins, evenly spaced in its logarithm.

A model gives a probability to each bin. Within a bin lengths are taken to be equally likely, and in
the last one, which has no end, to fall off exponentially.
"""

import math
from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from foretell.model import LengthEstimate

Floats = NDArray[np.float64]

LONGEST_TOKENS = 16_384
"""Where the last bin begins."""
_BINS_PER_FACTOR = 5.0  # in which lengths grow by e


def _edges() -> Floats:
    count = round(np.log(LONGEST_TOKENS) * _BINS_PER_FACTOR) + 1
    ends = np.unique(np.round(np.exp(np.linspace(0.0, np.log(LONGEST_TOKENS), count))))
    return np.concatenate(([0.0], ends))


EDGES: Floats = _edges()
"""Bin b holds lengths above EDGES[b] and up to EDGES[b + 1]; the last has no upper edge."""
BINS = len(EDGES)
LEVELS = (0.025, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975, 0.99)
"""Levels of the quantiles that an estimate carries."""
_EDGE_LIST: list[float] = EDGES.tolist()
_WIDTHS = np.diff(EDGES)
_TAIL_MEAN = LONGEST_TOKENS / 2.0
CENTRE_LOGS: Floats = np.log((EDGES + np.append(EDGES[1:], EDGES[-1] + _TAIL_MEAN) + 1.0) / 2.0)
"""Logarithms of the mean of each bin's lengths; of the last one, of a length somewhat within."""
_MEANS: Floats = np.append((EDGES[1:] + EDGES[:-1]) / 2.0, LONGEST_TOKENS + _TAIL_MEAN)
"""The mean length in each bin."""
_BEYOND: Floats = np.array([0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_KNOTS: Floats = np.concatenate((EDGES, LONGEST_TOKENS + _TAIL_MEAN * _BEYOND))
_ENDED: Floats = -np.expm1(-_BEYOND)
_NONE: Floats = np.zeros(1)


def bin_of(tokens: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """The bins of lengths, of any shape."""
    found = np.searchsorted(EDGES, np.asarray(tokens), side="left") - 1
    return np.clip(found, 0, BINS - 1)


def quantiles(probabilities: Floats, levels: tuple[float, ...] = LEVELS) -> Floats:
    """Tokens at each level: (n, levels) of `probabilities`, (n, `BINS`), whose rows add up to 1."""
    below, wanted = probabilities.cumsum(axis=1), np.array(levels)
    at = np.minimum((below[:, :, None] < wanted).sum(axis=1), BINS - 1)
    flat = at + np.arange(0, below.size, BINS)[:, None]
    own = probabilities.take(flat)
    inside = (wanted - below.take(flat) + own) / np.maximum(own, 1e-12)
    share = np.minimum(np.maximum(inside, 0.0), 1.0 - 1e-9)
    linear = share * _WIDTHS.take(np.minimum(at, BINS - 2))
    tail = -np.log1p(-share) * _TAIL_MEAN
    return np.asarray(EDGES.take(at) + np.where(at < BINS - 1, linear, tail))


def bin_at(tokens: int) -> int:
    """The bin of one length, at least 1."""
    return bisect_left(_EDGE_LIST, tokens) - 1


def share_of_bin(at: int, tokens: float) -> float:
    """The share of the lengths in bin `at` that are up to `tokens`, a length in that bin."""
    inside = tokens - _EDGE_LIST[at]
    return inside / float(_WIDTHS[at]) if at < BINS - 1 else -math.expm1(-inside / _TAIL_MEAN)


def level_at(below: Floats, at: int, share: float) -> float:
    """P(length <= one in bin `at`, of whose lengths it is above a `share`); `below` (`BINS`,)."""
    before = float(below[at - 1]) if at else 0.0
    return before + share * (float(below[at]) - before)


def below_at(below: Floats, tokens: Floats) -> Floats:
    """P(length <= tokens) at some `tokens`, of one distribution.

    `below` (`BINS`,): its P(length <= upper edge) of each bin. The last bin's exponential is
    followed in straight lines.
    """
    before = below[-2]
    levels = np.concatenate((_NONE, below[:-1], before + (1.0 - before) * _ENDED))
    return np.asarray(np.interp(tokens, _KNOTS, levels, right=1.0))


def means(probabilities: Floats, limits: Floats) -> Floats:
    """E[min(length, limit)] of each row; `limits` (n,) may be infinite."""
    if np.isinf(limits).all():
        return np.asarray(probabilities @ _MEANS)
    upper = np.append(EDGES[1:], np.inf)
    low = np.minimum(EDGES, limits[:, None])
    high = np.minimum(upper, limits[:, None])
    with np.errstate(invalid="ignore"):
        reached = np.clip((limits[:, None] - EDGES) / (upper - EDGES), 0.0, 1.0)
    # Those of a bin that the limit cuts: a share lies below it, the rest is cut to it.
    inside = reached * (low + high) / 2 + (1.0 - reached) * np.maximum(low, high)
    beyond = np.maximum(0.0, limits - LONGEST_TOKENS)
    inside[:, -1] = np.minimum(LONGEST_TOKENS, limits) - _TAIL_MEAN * np.expm1(-beyond / _TAIL_MEAN)
    return np.asarray((probabilities * inside).sum(axis=1))


def estimates(probabilities: Floats, max_tokens: list[int], source: str) -> list[LengthEstimate]:
    """The rows of `probabilities` as estimates, none above its `max_tokens` (0: no limit)."""
    limits = np.array([float(most) if most > 0 else np.inf for most in max_tokens])
    tokens = np.minimum(quantiles(probabilities), limits[:, None])
    return [
        LengthEstimate(
            expected_tokens=max(1.0, mean),
            quantiles=tuple(zip(LEVELS, row, strict=True)),
            source=source,
        )
        for mean, row in zip(means(probabilities, limits).tolist(), tokens.tolist(), strict=True)
    ]
