"""Output lengths as distributions, given what was generated already.

A distribution is a row of `WIDTH` float64: tokens at each of `LEVELS`, ascending, then the tail.
In between, tokens are linear in the cumulative hazard H(t) = -log P(L > t): the hazard of ending
is constant from knot to knot. Beyond the last knot it is 1 / tail per token, an exponential. The
survival update of a live request is then one addition: L given L > g has the cumulative hazard
H(g) + E, where E is exponential with mean 1.

A row whose tail is 0 ends at its last knot; with all knots equal it is a length taken for certain.
Who outlives such a row falls under Block's rule and generates `OVERRUN_TOKENS` more.
"""

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.jit import compiled

LEVELS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
"""The probability P(L <= knot) of each knot."""
WIDTH = len(LEVELS) + 1
OVERRUN_TOKENS = 10.0
"""Tokens that a request still generates when it has outlived a row without a tail (Block)."""
STRATA = 1024
"""Equally likely levels that a draw can take; also the most samples that `draw_levels` makes."""

_BITS = STRATA.bit_length() - 1
_LAST = len(LEVELS) - 1
_HAZARD = -np.log(1.0 - np.array(LEVELS))
_PER_HAZARD = 1.0 / np.diff(_HAZARD)
_STRATUM_HAZARD = -np.log1p(-(np.arange(STRATA) + 0.5) / STRATA)


def _shifts() -> NDArray[np.int64]:
    """The shifts of the samples: entry s is applied to a stratum by exclusive or.

    The van der Corput sequence in base 2, every other entry the complement of the one before. The
    first 2**b entries differ in their b highest bits: they take a stratum, wherever it starts, to
    each 2**b-th part of the strata once.
    """
    even = [int(f"{s:0{_BITS - 1}b}"[::-1], 2) for s in range(STRATA // 2)]
    return np.array([(e, STRATA - 1 - e) for e in even], dtype=np.int64).reshape(STRATA)


_SHIFT = _shifts()


@compiled
def hazard(row: NDArray[np.float64], g: float) -> float:
    """H(g) = -log P(L > g); infinite where `row` ends at `g` tokens or before."""
    if g < row[0]:
        return 0.0
    if g >= row[_LAST]:
        tail = row[_LAST + 1]
        return float(_HAZARD[_LAST] + (g - row[_LAST]) / tail) if tail > 0.0 else np.inf
    i = 0
    while g >= row[i + 1]:  # of equal knots the last: P(L > g) does not hold those that end at g
        i += 1
    share = (g - row[i]) / (row[i + 1] - row[i])
    return float(_HAZARD[i] + share * (_HAZARD[i + 1] - _HAZARD[i]))


@compiled
def tokens_at(row: NDArray[np.float64], h: float) -> float:
    """The number of tokens at the finite cumulative hazard `h`."""
    i = 0
    for knot in range(1, _LAST + 1):  # counting takes no branch that could be mispredicted
        i += h >= _HAZARD[knot]
    if i == _LAST:
        return float(row[_LAST] + (h - _HAZARD[_LAST]) * row[_LAST + 1])
    return float(row[i] + (h - _HAZARD[i]) * _PER_HAZARD[i] * (row[i + 1] - row[i]))


@compiled
def conditional_quantile(row: NDArray[np.float64], g: float, u: float) -> float:
    """The quantile of L, given L > g, at level `u` in (0, 1): a number of tokens above `g`."""
    h = hazard(row, g)
    if h == np.inf:
        return g + OVERRUN_TOKENS
    return tokens_at(row, h - np.log1p(-u))


@compiled
def stratum_of(key: int, seed: int) -> int:
    """The stratum of a request: uniform over keys and seeds (the finalizer of splitmix64)."""
    z = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int(z >> np.uint64(64 - _BITS))


@compiled
def draw_levels(
    row: NDArray[np.float64], g: int, key: int, seed: int, totals: NDArray[np.int64], i: int
) -> None:
    """Samples of what a request that has generated `g` will have generated when it ends.

    Column `i` of `totals`, (samples, n), is overwritten with whole tokens, each above `g`.
    `max_tokens` is the caller's to apply.

    Within a sample requests are independent, as they are in the engine. Over the samples each
    request takes its levels from equal parts of (0, 1), as in Latin hypercube sampling (McKay,
    Beckman and Conover, 1979), from a start that its key and the seed decide: 2, 4, 8, ... samples
    already have good means. A request that keeps its key keeps its levels. A single sample is no
    draw: it is the median.
    """
    h = hazard(row, float(g))
    if h == np.inf:
        for s in range(len(totals)):
            totals[s, i] = g + int(OVERRUN_TOKENS)
        return
    if len(totals) == 1:
        totals[0, i] = max(g + 1, round(tokens_at(row, h + _STRATUM_HAZARD[STRATA // 2])))
        return
    stratum = stratum_of(key, seed)
    for s in range(len(totals)):
        tokens = tokens_at(row, h + _STRATUM_HAZARD[stratum ^ _SHIFT[s]])
        totals[s, i] = max(g + 1, round(tokens))
