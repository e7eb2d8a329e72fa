"""Look-ups in measured tables, all of which lie in one array.

A row of `layout` describes one table: where its axes begin in `values`, and how long each of up to
four axes is. The axes follow each other and the seconds follow the axes, in row-major order. No
axis is shorter than two; a table of length zero is not there. `latency.tables` packs them.
"""

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.jit import inlined

TOKENS, SEQUENCES, RANKS, GRAPH_SIZES, PREFILL, DECODE, MIXED = range(7)
"""Rows of `layout`: the fields of `model.StepTables`. Graph sizes are an axis without seconds."""
TABLES, LAYOUT_WIDTH = 7, 5

Values = NDArray[np.float64]
Layout = NDArray[np.int64]


@inlined
def locate(values: Values, start: int, size: int, x: float) -> tuple[int, float]:
    """Where `x` lies on the axis of `size` ascending values from `start`.

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
    """`tokens`, or the least graph size that holds them."""
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
    """Seconds of a table of one axis: linear between its points, in proportion beyond the last."""
    start, size = layout[table, 0], layout[table, 1]
    last = start + size - 1
    if x >= values[last]:
        return float(values[last + size] * x / values[last])
    index, share = locate(values, start, size, x)
    at = start + size + index
    return float(values[at] + share * (values[at + 1] - values[at]))


@inlined
def grid2_s(values: Values, layout: Layout, table: int, x: float, y: float) -> float:
    """Seconds of a table of two axes: bilinear."""
    start, rows, columns = layout[table, 0], layout[table, 1], layout[table, 2]
    row, down = locate(values, start, rows, x)
    column, right = locate(values, start + rows, columns, y)
    at = start + rows + columns + row * columns + column
    return max(0.0, _cell(values, at, columns, down, right))


@inlined
def grid4_s(
    values: Values, layout: Layout, table: int, q: float, p: float, n: float, c: float
) -> float:
    """Seconds of a table of four axes: multilinear."""
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
def grid2_run_s(
    values: Values, layout: Layout, table: int, x: float, first: float, steps: int
) -> float:
    """Sum of `grid2_s` at `x` and `first`, `first + 1`, ..., `steps` of them.

    Between two points of the second axis the values are an arithmetic series.
    """
    start, rows, columns = layout[table, 0], layout[table, 1], layout[table, 2]
    axis = start + rows
    row, down = locate(values, start, rows, x)
    cells = axis + columns + row * columns
    total, taken, knot = 0.0, 0, axis
    while taken < steps:
        y = first + taken
        while knot < axis + columns and values[knot] <= y:
            knot += 1
        # The steps up to the next point lie on one line; after the last point, all of them do.
        left = steps - taken
        if knot < axis + columns:
            left = min(left, int(values[knot] - y) + 1)
        column, right = locate(values, axis, columns, y)
        total_ends = max(0.0, _cell(values, cells + column, columns, down, right))
        column, right = locate(values, axis, columns, y + left - 1)
        total_ends += max(0.0, _cell(values, cells + column, columns, down, right))
        total += total_ends * left / 2
        taken += left
    return total


@inlined
def _cell(values: Values, at: int, columns: int, down: float, right: float) -> float:
    """Bilinear between the value at `at`, the next, and those one row of `columns` further."""
    upper = values[at] + right * (values[at + 1] - values[at])
    below = at + columns
    lower = values[below] + right * (values[below + 1] - values[below])
    return float(upper + down * (lower - upper))
