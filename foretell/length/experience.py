"""How often answers ended in each of some cells of length; the older, the less it counts."""

import numpy as np
from numpy.typing import NDArray

from foretell.kernel import compiled

Floats = NDArray[np.float64]

MEMORY = 1000.0
"""Observations after which one counts for 1/e."""
_GROWTH = 1.0 / (1.0 - 1.0 / MEMORY)
_MOST_UNIT = 1e9


class Experience:
    """A distribution over cells in ascending order, from complete and censored observations.

    The product-limit estimator with a prior: of the answers that reached a cell, the share that
    went on beyond it is estimated with the prior as so many more answers (the beta-Stacy process
    of Walker and Muliere, 1997). An answer cut within a cell was at risk for the share of it that
    it had passed.
    """

    __slots__ = ("_passed", "_reached", "_unit")

    def __init__(self, cells: int) -> None:
        self._reached = np.zeros(cells)  # answers that came to a cell
        self._passed = np.zeros(cells)  # and beyond it
        self._unit = 1.0  # what one answer counts now: the others fade as it grows

    def forget(self) -> None:
        """Let what was observed count for less than what is next."""
        self._unit *= _GROWTH
        if self._unit > _MOST_UNIT:
            self._reached /= self._unit
            self._passed /= self._unit
            self._unit = 1.0

    def end(self, cell: int, share: float = 1.0) -> None:
        """An answer, or the `share` of one that is not known more exactly, ended in `cell`."""
        self._reached[: cell + 1] += share * self._unit
        self._passed[:cell] += share * self._unit

    def cut(self, cell: int, share: float) -> None:
        """An answer was cut in `cell` when it had passed so large a `share` of it, 0 to 1."""
        self._reached[:cell] += self._unit
        self._passed[:cell] += self._unit
        self._reached[cell] += share * self._unit
        self._passed[cell] += share * self._unit

    def below(self, prior: Floats, answers: float) -> Floats:
        """P(an answer ends in a cell or before it), (..., cells).

        `prior`: the same as it was believed to be before any observation, worth so many `answers`.
        """
        below = np.empty(prior.shape)
        rows = prior.reshape(-1, prior.shape[-1])
        worth = answers * self._unit
        compiled.experience(rows, self._reached, self._passed, worth, below.reshape(rows.shape))
        return below
