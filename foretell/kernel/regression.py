"""Recursive least squares (`regression.h`): an estimate `theta` and its covariance `p`."""

import numpy as np
from numpy.typing import NDArray

from foretell.kernel import compiled
from foretell.kernel.compiled import update, widen

__all__ = ["non_negative", "update", "widen"]

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


def non_negative(theta: Vector, p: Matrix) -> Vector:
    """The estimate under the constraint that no parameter is negative."""
    found = theta.copy()
    compiled.non_negative(found, p.copy())
    return found
