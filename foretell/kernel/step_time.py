"""Seconds of an engine step, from the sums that describe its batch."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.jit import compiled

FLOOR, TABLES_SCALE = 6, 7
"""Places in `StepTime.coefficients` behind those of the six features."""


class StepTime(NamedTuple):
    """A step-time model as arrays; `latency` makes them.

    `coefficients` holds eight numbers: seconds per unit of each of `latency.linear.FEATURES`, the
    least seconds of a step, and the factor on what the tables say.
    """

    coefficients: NDArray[np.float64]


@compiled
def step_s(
    model: StepTime,
    prefill_seqs: int,
    prefill_tokens: int,
    pairs: int,
    seqs: int,
    decode_pairs: int,
) -> float:
    """Seconds of one step; the arguments are the fields of `BatchShape` in their order."""
    c = model.coefficients
    seconds = (
        c[0]
        + c[1] * prefill_tokens
        + c[2] * pairs
        + c[3] * prefill_seqs
        + c[4] * seqs
        + c[5] * decode_pairs
    )
    return float(max(c[6], seconds))


@compiled
def decode_run_s(model: StepTime, seqs: int, decode_pairs: int, steps: int) -> float:
    """Seconds of `steps` pure-decode steps of `seqs` sequences, the first with `decode_pairs`."""
    first = step_s(model, 0, 0, 0, seqs, decode_pairs)
    growth = model.coefficients[5] * seqs
    series = first * steps + growth * steps * (steps - 1) / 2
    return float(max(model.coefficients[6] * steps, series))
