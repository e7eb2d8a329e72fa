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

from foretell.kernel.compiled import (
    conditional_quantile,
    draw_levels,
    hazard,
    set_levels,
    stratum_of,
    tokens_at,
)

__all__ = [
    "LEVELS",
    "OVERRUN_TOKENS",
    "STRATA",
    "WIDTH",
    "conditional_quantile",
    "draw_levels",
    "hazard",
    "stratum_of",
    "tokens_at",
]

LEVELS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
"""The probability P(L <= knot) of each knot."""
WIDTH: int = len(LEVELS) + 1
OVERRUN_TOKENS = 10.0
"""Tokens that a request still generates when it has outlived a row without a tail (Block)."""
STRATA = 1024
"""Equally likely levels that a draw can take; also the most samples that `draw_levels` makes."""

_BITS = STRATA.bit_length() - 1
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

set_levels(_HAZARD, _PER_HAZARD, _STRATUM_HAZARD, _SHIFT)
