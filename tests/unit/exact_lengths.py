"""Survival and means of the kernel's length distributions, by their definitions."""

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.lengths import LEVELS, OVERRUN_TOKENS, hazard

Row = NDArray[np.float64]


def survival(row: Row, g: float) -> float:
    """P(L > g)."""
    return float(np.exp(-hazard(row, g)))


def conditional_mean(row: Row, g: float) -> float:
    """E[L | L > g], exactly: the area under P(L > t) beyond `g`, over P(L > g).

    Where the hazard is constant, the area is what P(L > t) falls by, over the hazard.
    """
    last, tail = row[-2:]
    if g >= last:
        return float(g + (tail if tail > 0.0 else OVERRUN_TOKENS))
    alive, left = survival(row, g), 1.0 - np.array(LEVELS)
    falls = np.maximum(0.0, np.minimum(alive, left[:-1]) - left[1:])
    area = tail * left[-1] + (falls * np.diff(row[:-1]) / -np.diff(np.log(left))).sum()
    return float(max(g, row[0]) + area / alive)
