"""Step time interpolated in measured tables.

A step is the sum of its parts, as one CUDA stream runs them: what depends on the number of tokens,
what depends on the number of sequences, and attention, which depends on every sequence's own query
and context lengths. A `BatchShape` holds only their sums, so attention is looked up for chunks of
equal size behind equal contexts, and for decodes of equal context; an importer may raise the
decode tables by what a spread of contexts was measured to cost.

Between table points everything is linear, and below the first point its value holds. Above the
last point a curve grows in proportion to it, for all is bandwidth or compute bound there and the
last segment of a finely sampled curve is mostly noise; the last segment of a grid, whose points
are far apart, goes on.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

from foretell.latency.linear import LinearStepTime, StepTimeModel
from foretell.model import BatchShape, Curve, GpuProfile, Grid, StepTables

_FLOOR_S = 1e-6


def graph_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Token counts that vLLM captures CUDA graphs for by default, ascending.

    `VllmConfig._set_cudagraph_sizes` of `vllm/config/vllm.py` (0.19).
    """
    most = min(2 * max_num_seqs, 512)
    return tuple(n for n in (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)) if n <= most)


def curve_s(curve: Curve, x: float) -> float:
    """Seconds of `curve` at `x`."""
    xs, seconds = curve.x, curve.seconds
    if x <= xs[0]:
        return seconds[0]
    if x >= xs[-1]:
        return seconds[-1] * x / xs[-1]
    high = bisect_right(xs, x)
    low = high - 1
    share = (x - xs[low]) / (xs[high] - xs[low])
    return seconds[low] + (seconds[high] - seconds[low]) * share


def grid_s(grid: Grid, at: Sequence[float]) -> float:
    """Seconds of `grid` at a point with one value per axis: multilinear."""
    corners = [(0, 1.0)]  # offset into the grid, weight
    for axis, x in zip(grid.axes, at, strict=True):
        size = len(axis)
        if x <= axis[0] or size == 1:
            corners = [(offset * size, weight) for offset, weight in corners]
            continue
        high = min(bisect_right(axis, x), size - 1)
        share = (x - axis[high - 1]) / (axis[high] - axis[high - 1])
        corners = [
            corner
            for offset, weight in corners
            for corner in (
                (offset * size + high - 1, weight * (1.0 - share)),
                (offset * size + high, weight * share),
            )
        ]
    return max(0.0, sum(grid.seconds[offset] * weight for offset, weight in corners))


class TabularStepTime:
    """A `StepTimeModel` that interpolates in a profile's tables."""

    def __init__(self, tables: StepTables) -> None:
        for grid, axes in ((tables.prefill, 2), (tables.decode, 2), (tables.mixed, 4)):
            if grid is not None:
                _check(grid, axes)
        for curve in (tables.tokens, tables.sequences, tables.ranks):
            if curve is not None:
                _check(Grid((curve.x,), curve.seconds), 1)
        self._tables = tables

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of one step of `shape`; with data-parallel ranks, of equal ones."""
        return max(_FLOOR_S, self.own_s(shape) + self.ranks_s(shape.tokens))

    def ranks_step_s(self, shapes: Sequence[BatchShape]) -> float:
        """Seconds of one step that data-parallel ranks of `shapes` take together.

        Each waits for the slowest before the experts, and the experts see the tokens of all.
        """
        own = max(self.own_s(shape) for shape in shapes)
        mean = sum(shape.tokens for shape in shapes) / len(shapes)
        return max(_FLOOR_S, own + self.ranks_s(mean))

    def decode_run_s(self, shape: BatchShape, steps: int) -> float:
        """Seconds of `steps` pure-decode steps from `shape`: the exact sum of `step_s`.

        Only attention changes, and over the context it is linear between table points: one
        arithmetic series for each.
        """
        first, seqs = self.step_s(shape), shape.decode_seqs
        if not seqs:
            return first * steps
        axis = self._tables.decode.axes[1]
        context, attention = shape.decode_pairs / seqs, self._decode_s(seqs, shape.decode_pairs)
        total, taken = (first - attention) * steps, 0
        while taken < steps:
            low = context + taken
            knot = bisect_right(axis, low)
            # The steps up to the next knot lie on one line; after the last, all of them do.
            left = steps - taken
            if knot < len(axis):
                left = min(left, max(1, int(axis[knot] - low) + 1))
            begin = grid_s(self._tables.decode, (seqs, low))
            end = grid_s(self._tables.decode, (seqs, low + left - 1))
            total += (begin + end) * left / 2
            taken += left
        return max(_FLOOR_S * steps, total)

    def own_s(self, shape: BatchShape) -> float:
        """Seconds of what the engine does by itself."""
        tables = self._tables
        sequences = shape.prefill_seqs + shape.decode_seqs
        return (
            tables.overhead_s
            + curve_s(tables.tokens, self._padded(shape.tokens))
            + curve_s(tables.sequences, sequences)
            + self._attention_s(shape)
        )

    def ranks_s(self, tokens: float) -> float:
        """Seconds of what data-parallel ranks do together with `tokens` each on average."""
        if self._tables.ranks is None:
            return 0.0
        return curve_s(self._tables.ranks, self._padded(tokens))

    def _padded(self, tokens: float) -> float:
        sizes = self._tables.graph_sizes
        index = bisect_left(sizes, tokens)
        return sizes[index] if index < len(sizes) else tokens

    def _attention_s(self, shape: BatchShape) -> float:
        seqs = shape.decode_seqs
        if not shape.prefill_seqs or not shape.prefill_tokens:
            return self._decode_s(seqs, shape.decode_pairs)
        chunk = shape.prefill_tokens / shape.prefill_seqs
        # From the pairs of a chunk, q*c + q*(q+1)/2, the tokens it stands behind.
        computed = max(0.0, shape.prefill_pairs / shape.prefill_tokens - (chunk + 1) / 2)
        one = grid_s(self._tables.prefill, (chunk, computed))
        if not seqs:
            return one * shape.prefill_seqs
        if self._tables.mixed is None:
            return one * shape.prefill_seqs + self._decode_s(seqs, shape.decode_pairs)
        point = (chunk, computed, seqs, shape.decode_pairs / seqs)
        return one * (shape.prefill_seqs - 1) + grid_s(self._tables.mixed, point)

    def _decode_s(self, seqs: int, pairs: int) -> float:
        return grid_s(self._tables.decode, (seqs, pairs / seqs)) if seqs else 0.0


def profile_step_time(profile: GpuProfile) -> StepTimeModel:
    """The best model that `profile` holds: its tables, or else its coefficients."""
    if profile.tables is not None:
        return TabularStepTime(profile.tables)
    return LinearStepTime(profile.coefficients_s)


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
