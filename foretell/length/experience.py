"""How often answers ended in each cell of length; older answers count less."""

import numpy as np
from numpy.typing import NDArray

from foretell.kernel import compiled

Floats = NDArray[np.float64]

MEMORY = 1000.0
"""Observations after which an earlier one counts for 1/e."""
_GROWTH = 1.0 / (1.0 - 1.0 / MEMORY)
_MOST_UNIT = 1e9


class Experience:
    """A distribution over cells in ascending order, from complete and censored observations.

    The product-limit estimator with a prior: of the answers that reached a cell, the share that
    went on beyond it is estimated, with the prior counted as additional answers (the beta-Stacy
    process of Walker and Muliere, 1997). An answer cut within a cell was at risk for the share of
    the cell that it had passed.
    """

    __slots__ = ("_passed", "_reached", "_unit")

    def __init__(self, cells: int) -> None:
        self._reached = np.zeros(cells)  # answers that reached a cell
        self._passed = np.zeros(cells)  # answers that went beyond it
        self._unit = 1.0  # weight of a new answer: earlier ones fade as it grows

    def forget(self) -> None:
        """Let earlier answers count less than the next one."""
        self._unit *= _GROWTH
        if self._unit > _MOST_UNIT:
            self._reached /= self._unit
            self._passed /= self._unit
            self._unit = 1.0

    def end(self, cell: int, share: float = 1.0) -> None:
        """Count an answer that ended in `cell`, or a `share` of one that ended in several cells."""
        self._reached[: cell + 1] += share * self._unit
        self._passed[:cell] += share * self._unit

    def cut(self, cell: int, share: float) -> None:
        """Count an answer that was cut after it had passed a `share` of `cell`, 0 to 1."""
        self._reached[:cell] += self._unit
        self._passed[:cell] += self._unit
        self._reached[cell] += share * self._unit
        self._passed[cell] += share * self._unit

    def below(self, prior: Floats, answers: float) -> Floats:
        """P(an answer ends in a cell or before it), (..., cells).

        `prior`: the same probabilities before any observation; they weigh as much as `answers`.
        """
        below = np.empty(prior.shape)
        rows = prior.reshape(-1, prior.shape[-1])
        worth = answers * self._unit
        compiled.experience(rows, self._reached, self._passed, worth, below.reshape(rows.shape))
        return below
