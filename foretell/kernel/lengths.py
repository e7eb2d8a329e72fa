"""Output lengths as distributions, given the tokens generated so far.

A distribution is a row of `WIDTH` float64: tokens at each of `LEVELS`, ascending, then the tail.
Between knots, tokens are linear in the cumulative hazard H(t) = -log P(L > t), so the hazard of
ending is constant. Beyond the last knot the hazard is 1 / tail per token: an exponential. The
survival update of a live request is then one addition: L given L > g has the cumulative hazard
H(g) + E, where E is exponential with mean 1.

A row with tail 0 ends at its last knot; if all its knots are equal, the length is certain. By
Block's rule, a request that outlives such a row generates `OVERRUN_TOKENS` more.
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
"""Tokens that a request still generates after it has outlived a row without a tail (Block)."""
STRATA = 1024
"""Equally likely levels of a draw; also the most samples that `draw_levels` makes."""

_BITS = STRATA.bit_length() - 1
_HAZARD = -np.log(1.0 - np.array(LEVELS))
_PER_HAZARD = 1.0 / np.diff(_HAZARD)
_STRATUM_HAZARD = -np.log1p(-(np.arange(STRATA) + 0.5) / STRATA)


def _shifts() -> NDArray[np.int64]:
    """The shifts of the samples; sample s has its stratum XOR entry s.

    The van der Corput sequence in base 2; every second entry is the complement of the one before.
    The first 2**b entries differ in their b highest bits, so from any stratum they reach each
    2**b-th part of the strata once.
    """
    even = [int(f"{s:0{_BITS - 1}b}"[::-1], 2) for s in range(STRATA // 2)]
    return np.array([(e, STRATA - 1 - e) for e in even], dtype=np.int64).reshape(STRATA)


_SHIFT = _shifts()

set_levels(_HAZARD, _PER_HAZARD, _STRATUM_HAZARD, _SHIFT)
