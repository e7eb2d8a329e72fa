"""Step time interpolated in measured tables.

A step is the sum of its parts, as one CUDA stream runs them: one depends on the number of tokens,
one on the number of sequences, and attention depends on every sequence's own query and context
lengths. A `BatchShape` holds only their sums, so attention is looked up for chunks of equal size
behind equal contexts, and for decodes of equal context. An importer may raise the decode tables by
the measured cost of a spread of contexts.

Between points, tables are interpolated linearly; below the first point its value holds. Above the
last point a curve grows in proportion to x, because kernels are bandwidth or compute bound there
and the last segment of a finely sampled curve is mostly noise. A grid, whose points are far apart,
continues its last segment.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from foretell.kernel import tables as kernel
from foretell.kernel.step_time import StepTime
from foretell.kernel.tables import LAYOUT_WIDTH, TABLES, Layout, Values
from foretell.latency.features import FEATURES
from foretell.latency.linear import FLOOR_S, LinearStepTime, StepTimeModel
from foretell.latency.profile_json import profile_from_json
from foretell.model import Curve, GpuProfile, Grid, StepTables

_Axis = tuple[float, ...]

NO_TABLES = LinearStepTime((0.0,) * len(FEATURES)).packed()
"""The arrays of a model without tables."""
_MOST_DECODES = 1024
"""Decode steps of up to so many sequences are looked up by index; larger ones are searched for."""


def graph_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Token counts that vLLM captures CUDA graphs for by default, ascending.

    `VllmConfig._set_cudagraph_sizes` of `vllm/config/vllm.py` (0.19).
    """
    most = min(2 * max_num_seqs, 512)
    return tuple(n for n in (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)) if n <= most)


class TabularStepTime(StepTimeModel):
    """A `StepTimeModel` that interpolates in a profile's tables."""

    __slots__ = ()

    def __init__(self, tables: StepTables) -> None:
        """ValueError for invalid tables."""
        super().__init__(_pack(tables))


def profile_step_time(profile: GpuProfile) -> StepTimeModel:
    """The best model of `profile`: its tables, or else its coefficients."""
    if profile.tables is not None:
        return TabularStepTime(profile.tables)
    return LinearStepTime(profile.coefficients_s)


@lru_cache(maxsize=16)
def packed_tables(profile: str) -> StepTime:
    """The best model of a GPU profile given as JSON; ValueError if it is invalid.

    Cached, so that engines of one kind share their tables.
    """
    return profile_step_time(profile_from_json(json.loads(profile))).packed()


class _Packer:
    """Packs tables one behind the other into the kernel's arrays."""

    def __init__(self) -> None:
        self._values: list[float] = []
        self._layout = np.zeros((TABLES, LAYOUT_WIDTH), dtype=np.int64)

    def add(self, table: int, axes: Sequence[_Axis], seconds: Sequence[float]) -> None:
        self._layout[table, : len(axes) + 1] = (len(self._values), *map(len, axes))
        for axis in axes:
            self._values.extend(axis)
        self._values.extend(seconds)

    def add_curve(self, table: int, curve: Curve) -> None:
        """Add a curve. A lone point gets a proportional second one: the kernel needs pairs."""
        x, seconds = curve.x, curve.seconds
        if len(x) == 1:
            x, seconds = (x[0], 2 * x[0]), (seconds[0], 2 * seconds[0])
        self.add(table, (x,), seconds)

    def add_grid(self, table: int, grid: Grid) -> None:
        """Add a grid. An axis of one point gets a second one with the same values."""
        seconds = np.array(grid.seconds).reshape([len(axis) for axis in grid.axes])
        for index, axis in enumerate(grid.axes):
            if len(axis) == 1:
                seconds = np.repeat(seconds, 2, axis=index)
        axes = [axis if len(axis) > 1 else (axis[0], axis[0] + 1.0) for axis in grid.axes]
        self.add(table, axes, seconds.ravel().tolist())

    def packed(self) -> tuple[Values, Layout]:
        return np.array(self._values), self._layout


def _pack(tables: StepTables) -> StepTime:
    """A model of `tables` alone, at scale 1; ValueError for an invalid table."""
    packer = _Packer()
    for table, curve in (
        (kernel.TOKENS, tables.tokens),
        (kernel.SEQUENCES, tables.sequences),
        (kernel.RANKS, tables.ranks),
    ):
        if curve is not None:
            _check(Grid((curve.x,), curve.seconds), 1)
            if curve.x[-1] <= 0:
                raise ValueError("a table over one variable must reach a positive value")
            packer.add_curve(table, curve)
    for table, grid, axes in (
        (kernel.PREFILL, tables.prefill, 2),
        (kernel.DECODE, tables.decode, 2),
        (kernel.MIXED, tables.mixed, 4),
    ):
        if grid is not None:
            _check(grid, axes)
            packer.add_grid(table, grid)
    packer.add(kernel.GRAPH_SIZES, (tables.graph_sizes,), ())
    _add_decode_steps(packer)
    coefficients = (tables.overhead_s, *[0.0] * (len(FEATURES) - 1), FLOOR_S, 1.0)
    return StepTime(np.array(coefficients), *packer.packed())


def _add_decode_steps(packer: _Packer) -> None:
    values, layout = packer.packed()
    axis = layout[kernel.DECODE]
    counts = range(_MOST_DECODES + 1)
    rows = [kernel.locate(values, axis[0], axis[1], float(count)) for count in counts]
    dense = [kernel.dense_s(values, layout, count, count) for count in counts]
    packer.add(
        kernel.DECODE_STEPS,
        (tuple(dense),),
        [*(float(row) for row, _ in rows), *(share for _, share in rows)],
    )


def curve_s(curve: Curve, x: float) -> float:
    """Seconds of `curve` at `x`."""
    return kernel.curve_s(*_alone(curve), kernel.TOKENS, float(x))


@lru_cache(maxsize=1024)
def _alone(table: Curve | Grid) -> tuple[Values, Layout]:
    packer = _Packer()
    if isinstance(table, Curve):
        packer.add_curve(kernel.TOKENS, table)
    else:
        packer.add_grid(kernel.TOKENS, table)
    return packer.packed()


def _check(grid: Grid, axes: int) -> None:
    size = 1
    for axis in grid.axes:
        size *= len(axis)
        if not axis or any(a >= b for a, b in pairwise(axis)):
            raise ValueError("the axes of a table must ascend")
    if len(grid.axes) != axes or size != len(grid.seconds):
        raise ValueError(f"a table of {axes} axes and {size} points has {len(grid.seconds)} values")
    if min(grid.seconds) < 0:
        raise ValueError("a table holds a negative time")
