"""From a source of kernel times to the tables of a profile."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping
from itertools import product
from math import isnan
from statistics import median
from typing import TypeVar

from foretell.latency.tables import curve_s, graph_sizes
from foretell.model import Curve, DeviceSpec, Grid, ModelSpec, StepTables

MS = 1e-3
US = 1e-6

Row = Mapping[str, str]
"""One row of a table, as text."""

TOKENS = (*range(1, 9), *range(16, 257, 8), *range(272, 2049, 16))
SEQUENCES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)
CHUNKS = (1, 16, 32, 64, 128, 256, 512, 1024, 2048)
COMPUTED = (0, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
CONTEXTS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


Key = TypeVar("Key", bound=Hashable)


class StepSource(ABC):
    """How long the parts of a step take on a GPU, each summed over all layers; seconds."""

    @abstractmethod
    def tokens_s(self, tokens: int) -> float:
        """Everything but attention and the head."""

    @abstractmethod
    def sequences_s(self, sequences: int) -> float:
        """LM head and, where the source has it, the sampler."""

    @abstractmethod
    def prefill_s(self, chunk: int, computed: int) -> float:
        """Attention of one chunk behind computed tokens."""

    @abstractmethod
    def decode_s(self, seqs: int, context: int) -> float:
        """Attention of `seqs` decodes."""

    def mixed_s(self, chunk: int, computed: int, seqs: int, context: int) -> float | None:
        """Attention of a chunk and decodes in one step; None: the sum of the two."""
        return None

    def ranks_s(self, tokens: int) -> float | None:
        """What data-parallel ranks do together; None: there are none."""
        return None


def tabulate(source: StepSource, max_num_seqs: int) -> StepTables:
    """Samples of `source` on the grids above. The mixed grid is coarser: it has four axes.

    Decode seqs go up to 256. Steps are padded to the CUDA graphs vLLM captures by default for
    `max_num_seqs`.
    """
    seqs = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    few = ((16, 64, 256, 512, 1024, 2048), (0, 256, 1024, 2048, 4096, 16384))
    mixed_axes = (*few, (1, 4, 8, 16, 32, 64, 128), (16, 64, 256, 512, 1024, 2048, 4096, 16384))
    mixed = [source.mixed_s(*point) for point in product(*mixed_axes)]
    ranks = [source.ranks_s(n) for n in TOKENS]
    measured_mixed = tuple(value for value in mixed if value is not None)
    measured_ranks = tuple(value for value in ranks if value is not None)
    return StepTables(
        tokens=Curve(TOKENS, tuple(source.tokens_s(n) for n in TOKENS)),
        sequences=Curve(SEQUENCES, tuple(source.sequences_s(n) for n in SEQUENCES)),
        prefill=_grid(
            (CHUNKS, COMPUTED), (source.prefill_s(*p) for p in product(CHUNKS, COMPUTED))
        ),
        decode=_grid((seqs, CONTEXTS), (source.decode_s(*p) for p in product(seqs, CONTEXTS))),
        mixed=_grid(mixed_axes, measured_mixed) if measured_mixed else None,
        ranks=Curve(TOKENS, measured_ranks) if measured_ranks else None,
        graph_sizes=graph_sizes(max_num_seqs),
    )


def _grid(axes: tuple[tuple[int, ...], ...], seconds: Iterable[float]) -> Grid:
    return Grid(axes, tuple(seconds))


def curve_of(points: Iterable[tuple[float, float]]) -> Curve:
    """From unordered (x, seconds) points; the median where x repeats. NaN is no measurement."""
    grouped: dict[float, list[float]] = {}
    for x, seconds in points:
        if not isnan(seconds):
            grouped.setdefault(x, []).append(seconds)
    if not grouped:
        raise ValueError("a table without measurements")
    xs = tuple(sorted(grouped))
    return Curve(xs, tuple(median(grouped[x]) for x in xs))


def curves_by(points: Iterable[tuple[Key, float, float]]) -> dict[Key, Curve]:
    """The curve of each key, in the order in which they come, from (key, x, seconds)."""
    grouped: dict[Key, list[tuple[float, float]]] = {}
    for key, x, seconds in points:
        grouped.setdefault(key, []).append((x, seconds))
    return {key: curve_of(found) for key, found in grouped.items()}


def across_s(curves: Mapping[float, Curve], key: float, x: float) -> float:
    """Seconds at `x` for a `key` between those of `curves`, linear between two of them."""
    keys = tuple(sorted(curves))
    return curve_s(Curve(keys, tuple(curve_s(curves[k], x) for k in keys)), key)


def lm_head_s(model: ModelSpec, rows: int, device: DeviceSpec) -> float:
    """A 16-bit LM head the tables lack: weights at 80% of the bandwidth, or FLOPs at 70%."""
    weights = 2.0 * model.vocabulary * model.hidden_size
    flops = 2.0 * model.vocabulary * model.hidden_size * rows
    return max(weights / (0.8 * device.memory_bandwidth_bytes_per_s), flops / (0.7 * device.flops))
