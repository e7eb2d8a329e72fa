"""Seconds of an engine step, from the sums that describe its batch (`step_time.h`).

A step takes `max(floor, sum(coefficient * feature) + scale * tables(shape))`. `latency.tables`
describes the tables.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.compiled import decode_run_s, own_s, ranks_s, shape_s, step_s

__all__ = [
    "COEFFICIENTS",
    "FLOOR",
    "TABLES_SCALE",
    "StepTime",
    "StepTimes",
    "Sums",
    "decode_run_s",
    "own_s",
    "ranks_s",
    "scaled",
    "shape_s",
    "step_s",
]

FLOOR, TABLES_SCALE = 6, 7
"""Places in `StepTime.coefficients` behind those of the six features."""
COEFFICIENTS = 8


class StepTime(NamedTuple):
    """A step-time model as arrays, made by `foretell.latency`.

    They are contiguous and read-only. Without tables, the last two hold no table.
    """

    coefficients: NDArray[np.float64]
    """Eight numbers: seconds per unit of each of `latency.features.FEATURES`, the least seconds
    of a step, and the factor on the tables (0: they are not used)."""
    values: NDArray[np.float64]
    """The tables' axes and seconds (`kernel.tables`)."""
    layout: NDArray[np.int64]
    """The position of each table in `values`: `kernel.tables.TABLES` rows."""


class StepTimes(NamedTuple):
    """The step-time models of m engines, which share t sets of tables."""

    coefficients: NDArray[np.float64]
    """(m, 8): `StepTime.coefficients` of each engine."""
    tables: NDArray[np.int64]
    """(m,): the place of each engine's tables in the next two."""
    values: NDArray[np.float64]
    """(t, most values): `StepTime.values`, padded."""
    layout: NDArray[np.int64]
    """(t, `kernel.tables.TABLES`, `kernel.tables.LAYOUT_WIDTH`): `StepTime.layout`."""
    deployments: NDArray[np.int64]
    """(m,): the same number for engines that step together (`together.h`); -1: alone."""
    own_s: NDArray[np.float64]
    """(m, most steps). This and the rest are working memory for engines that step together."""
    steps: NDArray[np.int64]
    first_end_s: NDArray[np.float64]
    others_s: NDArray[np.float64]


class Sums(NamedTuple):
    """The sums that describe a batch: the fields of `BatchShape`, in their order."""

    prefill_seqs: int
    prefill_tokens: int
    prefill_pairs: int
    decode_seqs: int
    decode_pairs: int
    draft_tokens: int


def scaled(model: StepTime, factor: float) -> StepTime:
    """A model whose steps take `factor` times as long as those of `model`."""
    coefficients = model.coefficients * factor
    return model._replace(coefficients=coefficients)
