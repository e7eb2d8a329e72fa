"""How good predicted distributions of lengths are."""

from typing import Any

import numpy as np

from bench.length.workloads import Floats, Ints, Live
from foretell.kernel.lengths import conditional_mean, conditional_quantile

LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
_MEDIAN = LEVELS.index(0.5)
_INTERVALS = {"50%": (2, 4), "80%": (1, 5), "90%": (0, 6)}  # places in LEVELS
_BATCH = 48

Score = dict[str, float]


def predict(rows: Floats, generated: Ints) -> tuple[Floats, Floats]:
    """Totals at `LEVELS`, (n, levels), and means (n,), by the kernel; each above `generated`."""
    ages = generated.astype(np.float64)
    totals = [
        [conditional_quantile(row, g, level) for level in LEVELS]
        for row, g in zip(rows, ages, strict=True)
    ]
    means = [conditional_mean(row, g) for row, g in zip(rows, ages, strict=True)]
    return np.maximum(np.array(totals), ages[:, None] + 1), np.maximum(np.array(means), ages + 1)


def score_points(totals: Floats, live: Live) -> Score:
    """`score` of predictions without a spread, (n,)."""
    return score(np.repeat(totals[:, None], len(LEVELS), axis=1), totals, live)


def score(totals: Floats, means: Floats, live: Live) -> Score:
    """Errors of predicted lengths, in tokens, and coverage of central intervals.

    `mae`: mean absolute error of the median; `bias`: mean error of the mean, in tokens and over
    the mean of what remained; `pinball`: mean pinball loss over `LEVELS`; `batch`: mean absolute
    error of the sum that 48 requests have before them, over that sum.
    """
    actual = live.requests.output[:, None]
    short = actual - totals
    levels = np.array(LEVELS)
    left = actual[:, 0] - live.generated
    error = means - actual[:, 0]
    whole = len(error) // _BATCH * _BATCH
    sums = left[:whole].reshape(-1, _BATCH).sum(axis=1)
    batch = np.abs(error[:whole].reshape(-1, _BATCH).sum(axis=1)) / sums
    result = {
        "mae": float(np.abs(short[:, _MEDIAN]).mean()),
        "bias": float(error.mean()),
        "bias_ratio": float(error.mean() / left.mean()),
        "pinball": float(np.where(short >= 0, levels * short, (levels - 1) * short).mean()),
        "batch": float(batch.mean()),
    }
    for name, (low, high) in _INTERVALS.items():
        inside = (actual[:, 0] > totals[:, low]) & (actual[:, 0] <= totals[:, high])
        result[name] = float(inside.mean())
    return {name: round(value, 4) for name, value in result.items()}


def cells(figures: Score) -> list[Any]:
    """`figures` as the cells of a table's row, in `HEADER`'s order."""
    return [
        f"{figures['mae']:.0f}",
        f"{figures['bias']:+.0f} ({figures['bias_ratio']:+.0%})",
        f"{figures['pinball']:.1f}",
        f"{figures['batch']:.0%}",
        *(f"{figures[name]:.0%}" for name in _INTERVALS),
    ]


HEADER = ("MAE", "bias", "pinball", "batch of 48", *(f"{name} interval" for name in _INTERVALS))
