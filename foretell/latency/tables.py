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

from foretell.latency.linear import LinearStepTime, StepTimeModel
from foretell.latency.packing import pack
from foretell.model import GpuProfile, StepTables


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
        """ValueError for tables that are none."""
        super().__init__(pack(tables))


def profile_step_time(profile: GpuProfile) -> StepTimeModel:
    """The best model that `profile` holds: its tables, or else its coefficients."""
    if profile.tables is not None:
        return TabularStepTime(profile.tables)
    return LinearStepTime(profile.coefficients_s)
