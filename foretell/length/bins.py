"""Bins of output lengths, evenly spaced in the logarithm.

A model gives a probability to each bin. Within a bin all lengths count as equally likely; in the
last bin, which has no end, they fall off exponentially.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from foretell.kernel import compiled
from foretell.model import LengthEstimate

Floats = NDArray[np.float64]

LONGEST_TOKENS = 16_384
"""Where the last bin begins."""
_BINS_PER_FACTOR = 5.0  # bins over which lengths grow by a factor of e


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
"""Logarithm of each bin's mean length; for the last bin, of a length inside it."""
BEYOND: Floats = np.array([0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
"""Points that divide the last bin, in means of its exponential."""
KNOTS: Floats = np.concatenate((EDGES, LONGEST_TOKENS + _TAIL_MEAN * BEYOND))
"""Lengths between which cumulative distributions are linear: edges, and points of the last bin."""


def bin_of(tokens: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """The bins of lengths, of any shape."""
    found = np.searchsorted(EDGES, np.asarray(tokens), side="left") - 1
    return np.clip(found, 0, BINS - 1)


def quantiles(probabilities: Floats, levels: tuple[float, ...] = LEVELS) -> Floats:
    """Tokens at each level: (n, levels) of `probabilities`, (n, `BINS`), whose rows add up to 1."""
    found = np.empty((len(probabilities), len(levels)))
    compiled.quantiles(probabilities, np.array(levels), EDGES, _TAIL_MEAN, found)
    return found


def bin_at(tokens: int) -> int:
    """The bin of one length, at least 1."""
    return bisect_left(_EDGE_LIST, tokens) - 1


def share_of_bin(at: int, tokens: float) -> float:
    """The share of the lengths in bin `at` that are at most `tokens`, a length in that bin."""
    inside = tokens - _EDGE_LIST[at]
    return inside / float(_WIDTHS[at]) if at < BINS - 1 else -math.expm1(-inside / _TAIL_MEAN)


def level_at(below: Floats, at: int, share: float) -> float:
    """P(length <= x), where `share` of the lengths in bin `at` are at most x; `below` (`BINS`,)."""
    before = float(below[at - 1]) if at else 0.0
    return before + share * (float(below[at]) - before)


def means(probabilities: Floats, limits: Floats) -> Floats:
    """E[min(length, limit)] of each row; `limits` (n,) may be infinite."""
    found = np.empty(len(probabilities))
    compiled.means(probabilities, limits, EDGES, _TAIL_MEAN, found)
    return found


def estimates(
    probabilities: Floats, bounds: Sequence[tuple[int, int]], source: str
) -> list[LengthEstimate]:
    """The rows of `probabilities` as estimates within `bounds`.

    `bounds`: the fewest and the most tokens (0: no limit) of each row.
    """
    least = np.array([float(fewest) for fewest, _ in bounds])
    limits = np.array([float(most) if most > 0 else np.inf for _, most in bounds])
    tokens = np.clip(quantiles(probabilities), least[:, None], limits[:, None])
    expected = means(probabilities, limits)
    if least.any():  # E[max(length, least)]: shorter lengths are raised to `least`
        expected += least - means(probabilities, least)
    return [
        LengthEstimate(
            expected_tokens=max(1.0, mean),
            quantiles=tuple(zip(LEVELS, row, strict=True)),
            source=source,
        )
        for mean, row in zip(expected.tolist(), tokens.tolist(), strict=True)
    ]
