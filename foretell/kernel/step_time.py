"""Seconds of an engine step, from the sums that describe its batch.

A step takes `max(floor, sum(coefficient * feature) + scale * tables(shape))`. What the tables mean
is told in `latency.tables`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.jit import compiled, inlined
from foretell.kernel.tables import (
    MIXED,
    PREFILL,
    RANKS,
    curve_s,
    decode_s,
    dense_decode_s,
    dense_s,
    grid2_s,
    grid4_s,
    padded,
)
from foretell.kernel.tables import decode_run_s as attention_run_s

FLOOR, TABLES_SCALE = 6, 7
"""Places in `StepTime.coefficients` behind those of the six features."""
COEFFICIENTS = 8


class StepTime(NamedTuple):
    """A step-time model as arrays, which `foretell.latency` makes.

    All models have arrays of the same types, so that each function is compiled once: contiguous,
    writable (though never written), and empty where there are no tables.
    """

    coefficients: NDArray[np.float64]
    """Eight numbers: seconds per unit of each of `latency.features.FEATURES`, the least seconds
    of a step, and the factor on what the tables say (0: they are not looked at)."""
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


@inlined
def model_at(models: StepTimes, index: int) -> StepTime:
    """The model of one engine."""
    tables = models.tables[index]
    return StepTime(models.coefficients[index], models.values[tables], models.layout[tables])


class Sums(NamedTuple):
    """The sums that describe a batch: the fields of `BatchShape`, in their order."""

    prefill_seqs: int
    prefill_tokens: int
    prefill_pairs: int
    decode_seqs: int
    decode_pairs: int
    draft_tokens: int


@compiled
def step_s(
    model: StepTime,
    prefill_seqs: int,
    prefill_tokens: int,
    prefill_pairs: int,
    decode_seqs: int,
    decode_pairs: int,
    draft_tokens: int,
) -> float:
    """Seconds of one step; the arguments are the fields of `BatchShape` in their order.

    Data-parallel ranks that share experts are taken to run steps of equal shape.
    """
    sums = Sums(
        prefill_seqs, prefill_tokens, prefill_pairs, decode_seqs, decode_pairs, draft_tokens
    )
    own = own_s(model, sums)
    shared = ranks_s(model, float(prefill_tokens + decode_seqs + draft_tokens))
    return float(max(model.coefficients[FLOOR], own + shared))


@compiled
def decode_run_s(model: StepTime, decode_seqs: int, decode_pairs: int, steps: int) -> float:
    """Seconds of `steps` pure-decode steps of `decode_seqs`, the first with `decode_pairs`.

    The sum of `step_s`; exact where no or every step is below the floor. Each step adds one pair
    a sequence, and the time of attention is linear in them between two points of its table.
    """
    growth = model.coefficients[5] * decode_seqs * (steps * (steps - 1) / 2)
    total = growth + steps * _linear_s(model, Sums(0, 0, 0, decode_seqs, decode_pairs, 0))
    if model.coefficients[TABLES_SCALE] != 0.0:
        dense = dense_decode_s(model.values, model.layout, decode_seqs)
        attention = 0.0
        if decode_seqs:
            context = decode_pairs / decode_seqs
            attention = attention_run_s(model.values, model.layout, decode_seqs, context, steps)
        total += model.coefficients[TABLES_SCALE] * (steps * dense + attention)
        total += steps * ranks_s(model, float(decode_seqs))
    return float(max(model.coefficients[FLOOR] * steps, total))


@inlined
def own_s(model: StepTime, sums: Sums) -> float:
    """Seconds of the work that an engine does by itself, without the floor."""
    seconds = _linear_s(model, sums)
    if model.coefficients[TABLES_SCALE] != 0.0:
        if sums.prefill_seqs or sums.draft_tokens:
            tokens = sums.prefill_tokens + sums.decode_seqs + sums.draft_tokens
            sequences = sums.prefill_seqs + sums.decode_seqs
            dense = dense_s(model.values, model.layout, tokens, sequences)
        else:
            dense = dense_decode_s(model.values, model.layout, sums.decode_seqs)
        seconds += model.coefficients[TABLES_SCALE] * (dense + _attention_s(model, sums))
    return seconds


@inlined
def ranks_s(model: StepTime, tokens: float) -> float:
    """Seconds of the work that data-parallel ranks share, with `tokens` each on average."""
    if model.coefficients[TABLES_SCALE] == 0.0 or not model.layout[RANKS, 1]:
        return 0.0
    x = padded(model.values, model.layout, tokens)
    return float(model.coefficients[TABLES_SCALE]) * curve_s(model.values, model.layout, RANKS, x)


@inlined
def _linear_s(model: StepTime, sums: Sums) -> float:
    return float(
        model.coefficients[0]
        + model.coefficients[1] * (sums.prefill_tokens + sums.draft_tokens)
        + model.coefficients[2] * sums.prefill_pairs
        + model.coefficients[3] * sums.prefill_seqs
        + model.coefficients[4] * sums.decode_seqs
        + model.coefficients[5] * sums.decode_pairs
    )


@inlined
def _attention_s(model: StepTime, sums: Sums) -> float:
    """Seconds of attention by the tables, for equal chunks and for equal decodes."""
    if not sums.prefill_seqs or not sums.prefill_tokens:
        return _decode_attention_s(model, sums)
    chunk = sums.prefill_tokens / sums.prefill_seqs
    # From the pairs of a chunk, q*c + q*(q+1)/2, the tokens it stands behind.
    computed = max(0.0, sums.prefill_pairs / sums.prefill_tokens - (chunk + 1) / 2)
    if not sums.decode_seqs or not model.layout[MIXED, 1]:
        one = grid2_s(model.values, model.layout, PREFILL, chunk, computed)
        return one * sums.prefill_seqs + _decode_attention_s(model, sums)
    decodes, context = float(sums.decode_seqs), sums.decode_pairs / sums.decode_seqs
    both = grid4_s(model.values, model.layout, MIXED, chunk, computed, decodes, context)
    if sums.prefill_seqs > 1:
        one = grid2_s(model.values, model.layout, PREFILL, chunk, computed)
        both += one * (sums.prefill_seqs - 1)
    return both


@inlined
def _decode_attention_s(model: StepTime, sums: Sums) -> float:
    if not sums.decode_seqs:
        return 0.0
    context = sums.decode_pairs / sums.decode_seqs
    return decode_s(model.values, model.layout, sums.decode_seqs, context)


def scaled(model: StepTime, factor: float) -> StepTime:
    """A model whose every step takes `factor` times as long as the given one's."""
    coefficients = model.coefficients * factor
    return model._replace(coefficients=coefficients)
