"""Lookups in measured tables, all of which lie in one array.

A row of `layout` describes one table: where its axes begin in `values`, and how long each of up to
four axes is. The axes follow each other and the seconds follow the axes, in row-major order. No
axis is shorter than two; a table of length zero is not there. `latency.tables` packs them.
"""

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.jit import inlined

TOKENS, SEQUENCES, RANKS, GRAPH_SIZES, PREFILL, DECODE, MIXED, DECODE_STEPS = range(8)
"""Rows of `layout`: the fields of `model.StepTables`. Graph sizes are an axis without seconds.

Decode steps are what most steps are, so for each number of sequences, from 0 on, the three things
are kept that do not depend on their contexts: the seconds of everything but attention, and where in
the table of attention they lie: the row before, and the share of the way to the next.
"""
TABLES, LAYOUT_WIDTH = 8, 5

Values = NDArray[np.float64]
Layout = NDArray[np.int64]


@inlined
def locate(values: Values, start: int, size: int, x: float) -> tuple[int, float]:
    """Locate `x` on the axis of `size` ascending values from `start`.

    Returns the index of the point before, counted from `start`, and the share of the way to the
    next: 0 below the first point, above 1 beyond the last.
    """
    if x <= values[start]:
        return 0, 0.0
    low, high = start, start + size - 1
    while high - low > 1:
        middle = (low + high) >> 1
        if values[middle] <= x:
            low = middle
        else:
            high = middle
    return low - start, (x - values[low]) / (values[low + 1] - values[low])


@inlined
def padded(values: Values, layout: Layout, tokens: float) -> float:
    """The least CUDA graph size that holds `tokens`; `tokens` itself where none does."""
    low = layout[GRAPH_SIZES, 0]
    end = high = low + layout[GRAPH_SIZES, 1]
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < tokens:
            low = middle + 1
        else:
            high = middle
    return float(values[low]) if low < end else tokens


@inlined
def curve_s(values: Values, layout: Layout, table: int, x: float) -> float:
    """Seconds by a table of one axis: linear between its points, proportional beyond the last."""
    start, size = layout[table, 0], layout[table, 1]
    last = start + size - 1
    if x >= values[last]:
        return float(values[last + size] * x / values[last])
    index, share = locate(values, start, size, x)
    at = start + size + index
    return float(values[at] + share * (values[at + 1] - values[at]))


@inlined
def grid2_s(values: Values, layout: Layout, table: int, x: float, y: float) -> float:
    """Seconds by a table of two axes, bilinear."""
    row, down = locate(values, layout[table, 0], layout[table, 1], x)
    return _in_row_s(values, layout, table, row, down, y)


@inlined
def decode_s(values: Values, layout: Layout, sequences: int, context: float) -> float:
    """Seconds of attention for that many decodes."""
    row, down = _decode_row(values, layout, sequences)
    return _in_row_s(values, layout, DECODE, row, down, context)


@inlined
def _in_row_s(values: Values, layout: Layout, table: int, row: int, down: float, y: float) -> float:
    start, rows, columns = layout[table, 0], layout[table, 1], layout[table, 2]
    column, right = locate(values, start + rows, columns, y)
    at = start + rows + columns + row * columns + column
    return max(0.0, _cell(values, at, columns, down, right))


@inlined
def dense_decode_s(values: Values, layout: Layout, sequences: int) -> float:
    """Seconds of everything but attention for that many decodes."""
    if sequences < layout[DECODE_STEPS, 1]:
        return float(values[layout[DECODE_STEPS, 0] + sequences])
    return dense_s(values, layout, sequences, sequences)


@inlined
def dense_s(values: Values, layout: Layout, tokens: int, sequences: int) -> float:
    """Seconds of everything but attention."""
    x = padded(values, layout, float(tokens))
    return curve_s(values, layout, TOKENS, x) + curve_s(values, layout, SEQUENCES, float(sequences))


@inlined
def _decode_row(values: Values, layout: Layout, sequences: int) -> tuple[int, float]:
    """Locate `sequences` on the first axis of the table of decodes, as `locate` does."""
    start, count = layout[DECODE_STEPS, 0], layout[DECODE_STEPS, 1]
    if sequences < count:
        at = start + count + sequences
        return int(values[at]), float(values[at + count])
    return locate(values, layout[DECODE, 0], layout[DECODE, 1], float(sequences))


@inlined
def grid4_s(
    values: Values, layout: Layout, table: int, q: float, p: float, n: float, c: float
) -> float:
    """Seconds by a table of four axes, multilinear."""
    start = layout[table, 0]
    n_q, n_p = layout[table, 1], layout[table, 2]
    n_n, n_c = layout[table, 3], layout[table, 4]
    i, share_q = locate(values, start, n_q, q)
    j, share_p = locate(values, start + n_q, n_p, p)
    k, share_n = locate(values, start + n_q + n_p, n_n, n)
    m, share_c = locate(values, start + n_q + n_p + n_n, n_c, c)
    plane = n_n * n_c
    at = start + n_q + n_p + n_n + n_c + (i * n_p + j) * plane + k * n_c + m
    near = _cell(values, at, n_c, share_n, share_c)
    near += share_p * (_cell(values, at + plane, n_c, share_n, share_c) - near)
    at += n_p * plane
    far = _cell(values, at, n_c, share_n, share_c)
    far += share_p * (_cell(values, at + plane, n_c, share_n, share_c) - far)
    return max(0.0, near + share_q * (far - near))


@inlined
def decode_run_s(values: Values, layout: Layout, sequences: int, first: float, steps: int) -> float:
    """The sum of `decode_s` at contexts `first`, `first + 1`, ..., `steps` of them.

    Between two points of the axis of contexts the values are an arithmetic series.
    """
    start, rows, columns = layout[DECODE, 0], layout[DECODE, 1], layout[DECODE, 2]
    axis = start + rows
    row, down = _decode_row(values, layout, sequences)
    cells = axis + columns + row * columns
    column, right = locate(values, axis, columns, first)
    total, taken = 0.0, 0
    while True:
        y, left = first + taken, steps - taken
        before, beyond = values[axis + column], values[axis + column + 1]
        slope = 1.0 / (beyond - before)
        # The steps up to the next point lie on one line; after the last point, all of them do.
        if y < before:
            left, slope = min(left, int(before - y) + 1), 0.0
        elif column < columns - 2:
            left = min(left, int(beyond - y) + 1)
        ends = max(0.0, _cell(values, cells + column, columns, down, right))
        right += slope * (left - 1)
        ends += max(0.0, _cell(values, cells + column, columns, down, right))
        total += ends * left / 2
        taken += left
        if taken >= steps:
            return total
        column, right = locate(values, axis, columns, first + taken)


@inlined
def _cell(values: Values, at: int, columns: int, down: float, right: float) -> float:
    """The bilinear value between those at `at`, the next, and those one row further."""
    upper = values[at] + right * (values[at + 1] - values[at])
    below = at + columns
    lower = values[below] + right * (values[below + 1] - values[below])
    return float(upper + down * (lower - upper))
