"""Recursive least squares: an estimate `theta` and its covariance `p`, in place."""

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.jit import allocating

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


@allocating
def update(theta: Vector, p: Matrix, x: Vector, error: float, forgetting: float) -> None:
    """Learn that `theta` was `error` off at `x`, forgetting only in the direction of `x`.

    With r = x'Px: theta += Px error / (1 + r), and P -= Px x'P / (1/e + r) where
    e = l - (1 - l) / r discounts old knowledge by l = `forgetting` (Kulhavy 1987; Bittanti,
    Bolzern, Campi 1990). `p` and `error` are in units of the noise of one observation.
    """
    size = theta.size
    px = np.zeros(size)
    r = 0.0
    for i in range(size):
        for j in range(size):
            px[i] += p[i, j] * x[j]
        r += px[i] * x[i]
    if r <= 0.0:
        return
    e = forgetting - (1.0 - forgetting) / r
    shrink = e / (1.0 + e * r)
    for i in range(size):
        theta[i] += error / (1.0 + r) * px[i]
        for j in range(i, size):
            p[i, j] -= shrink * px[i] * px[j]
            p[j, i] = p[i, j]


@allocating
def widen(theta: Vector, p: Matrix, variance: float, shares: Vector) -> None:
    """Add the uncertainty of an estimate that is off by a common factor, and in each part.

    `shares` is what each part may be off by beyond its own size.
    """
    size = theta.size
    for i in range(size):
        mine = max(0.0, theta[i])
        for j in range(size):
            p[i, j] += variance * mine * max(0.0, theta[j])
        p[i, i] += variance * (mine * mine + shares[i] * shares[i])


@allocating
def non_negative(theta: Vector, p: Matrix) -> Vector:
    """The estimate under the constraint that no part is negative.

    Setting a negative part to zero alone would spoil the sum, for its neighbours made up for it:
    the estimate is conditioned on it being zero (a noiseless observation), worst part first.
    """
    theta, p = theta.copy(), p.copy()
    size = theta.size
    free = np.ones(size)
    for _ in range(size):
        worst = -1
        for i in range(size):
            if free[i] and theta[i] < 0.0 and (worst < 0 or theta[i] < theta[worst]):
                worst = i
        if worst < 0:
            break
        free[worst] = 0.0
        if p[worst, worst] > 0.0:
            column = p[:, worst] / p[worst, worst]
            row = p[worst, :].copy()
            for i in range(size):
                if free[i]:
                    theta[i] -= column[i] * theta[worst]
                    for j in range(size):
                        p[i, j] -= column[i] * row[j]
        theta[worst] = 0.0
    return np.maximum(theta, 0.0)
