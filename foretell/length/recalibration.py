"""Correct the width and skew of distributions by where actual lengths lay in them."""

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.compiled import recalibrate
from foretell.length.experience import Experience

Floats = NDArray[np.float64]

_CELLS = 20
_EDGES: Floats = np.linspace(0.0, 1.0, _CELLS + 1)
_PRIOR_ANSWERS = 80.0  # answers that agree with the distributions
_NARROWEST = 1e-6


class Recalibration:
    """Where in their distributions the actual lengths lay, and the correction that follows.

    u = F(length) is the probability integral transform of a length; if the distributions are right,
    it is uniform (Dawid, 1984). The distribution function G of the observed u corrects the next
    distribution to G(F(length)).
    """

    __slots__ = ("_levels", "_seen")

    def __init__(self) -> None:
        self._seen = Experience(_CELLS)
        self._levels: Floats | None = None  # G at _EDGES; None: out of date

    def correct(self, below: Floats) -> Floats:
        """P(length <= upper edge) of each bin, corrected; (..., `BINS`)."""
        if self._levels is None:
            self._levels = np.zeros(_CELLS + 1)
            self._levels[1:] = self._seen.below(_EDGES[1:], _PRIOR_ANSWERS)
        corrected = np.empty(below.shape)
        recalibrate(below.reshape(-1), self._levels, corrected.reshape(-1))
        return corrected

    def end(self, lower: float, upper: float) -> None:
        """Count an answer that ended somewhere between F = `lower` and `upper`."""
        lower = min(max(lower, 0.0), 1.0 - _NARROWEST)
        upper = min(max(upper, lower + _NARROWEST), 1.0)
        self._seen.forget()
        self._levels = None
        for cell in range(int(lower * _CELLS), min(int(upper * _CELLS) + 1, _CELLS)):
            inside = min(upper, (cell + 1) / _CELLS) - max(lower, cell / _CELLS)
            self._seen.end(cell, max(0.0, inside) / (upper - lower))

    def cut(self, lower: float) -> None:
        """Count an answer that was cut after it had passed F = `lower`."""
        position = min(max(lower, 0.0), 1.0) * _CELLS
        cell = min(int(position), _CELLS - 1)
        self._seen.forget()
        self._levels = None
        self._seen.cut(cell, position - cell)
