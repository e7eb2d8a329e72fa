"""LLMServingSim's tables: layers measured inside vLLM, attention on a four-dimensional grid.

Source format: `profiler/perf/DEVICE/MODEL/DTYPE/tpN/*.csv` of github.com/casys-kaist/LLMServingSim
(MIT). All times are microseconds of one layer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean

from foretell.latency.importers.source import US, Row, StepSource, across_s, curves_by
from foretell.latency.tables import curve_s, grid_s
from foretell.model import Curve, Grid, ModelSpec

ONCE = ("embedding", "final_layernorm")
TWICE = "layernorm"  # before attention and before the MLP
POINT = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
# The grid that every combination was measured on; the table has more points, on a second grid
# that does not share all of them.
CHUNKS = (16, 32, 64, 128, 256, 512, 1024, 2048)
KV = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
DECODES = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class Link:
    """What connects the devices of one engine group."""

    bandwidth_bytes_per_s: float
    latency_s: float

    def all_reduce_s(self, size_bytes: float, devices: int) -> float:
        """On a ring 2 (n - 1) / n of the data pass every link (Patarasu and Yuan, 2009)."""
        passes = 2.0 * (devices - 1) / devices
        return self.latency_s + passes * size_bytes / self.bandwidth_bytes_per_s

    def all_gather_s(self, size_bytes: float, devices: int) -> float:
        """`size_bytes` of every device to every other; a reduce-scatter is the same backwards."""
        return self.latency_s + (devices - 1) * size_bytes / self.bandwidth_bytes_per_s


class LlmServingSimSource(StepSource):
    """One model on `tensor_parallel` devices, or on as many ranks that share their experts.

    `skew`, where given, holds what batches of unequal contexts took against batches of equal ones
    with the same mean. A batch shape does not know its spread, so decode attention is raised by
    the mean slowdown of all measured spreads at that number of sequences.
    """

    def __init__(
        self,
        model: ModelSpec,
        dense: Iterable[Row],
        per_sequence: Iterable[Row],
        attention: Iterable[Row],
        *,
        skew: Iterable[Row] = (),
        moe: Iterable[Row] = (),
        link: Link | None = None,
        tensor_parallel: int = 1,
        data_parallel: int = 1,
    ) -> None:
        if (tensor_parallel > 1 or data_parallel > 1) and link is None:
            raise ValueError("more than one device needs the link between them")
        if tensor_parallel > 1 and model.experts:
            raise ValueError("experts over tensor-parallel devices are not supported")
        self._model, self._link = model, link
        self._tensor_parallel, self._data_parallel = tensor_parallel, data_parallel
        self._dense = _curves(dense, "tokens")
        self._per_sequence = _curves(per_sequence, "sequences")
        self._experts = curves_by(
            (float(row["activated_experts"]), float(row["tokens"]), float(row["time_us"]) * US)
            for row in moe
        )
        if bool(self._experts) != bool(model.experts):
            raise ValueError(f"{model.name} has {model.experts} experts; its tables disagree")
        table = {tuple(int(row[k]) for k in POINT): float(row["time_us"]) * US for row in attention}
        rows = list(skew)
        pure, mixed = (_slowdown(rows, regime) for regime in ("pure", "mixed"))
        self._prefill = _grid([(c, kv) for c, kv in product(CHUNKS, (0, *KV))], table, (0, 0))
        self._decode = Grid(
            ((*DECODES, 256), KV),
            tuple(
                table[0, 0, n, kv] * (1.0 + curve_s(pure, n))
                for n, kv in product((*DECODES, 256), KV)
            ),
        )
        self._mixed = Grid(
            (CHUNKS, (0, *KV), DECODES, KV),
            tuple(
                table[point] * (1.0 + curve_s(mixed, point[2]))
                for point in product(CHUNKS, (0, *KV), DECODES, KV)
            ),
        )

    def tokens_s(self, tokens: int) -> float:
        """Seconds of all layers and the embedding, all-reduces included."""
        layer = sum(
            curve_s(curve, tokens) * (2 if name == TWICE else 1)
            for name, curve in self._dense.items()
            if name not in ONCE
        )
        if self._link and self._tensor_parallel > 1:
            layer += 2 * self._link.all_reduce_s(self._bytes(tokens), self._tensor_parallel)
        if self._data_parallel == 1:
            layer += self._experts_s(tokens)
        once = sum(curve_s(self._dense[name], tokens) for name in ONCE)
        return self._model.layers * layer + once

    def sequences_s(self, sequences: int) -> float:
        """Seconds of LM head and sampler."""
        return sum(curve_s(curve, sequences) for curve in self._per_sequence.values())

    def prefill_s(self, chunk: int, computed: int) -> float:
        """Seconds of a chunk's attention in all layers."""
        return self._model.layers * grid_s(self._prefill, (chunk, computed))

    def decode_s(self, seqs: int, context: int) -> float:
        """Seconds of decode attention in all layers."""
        return self._model.layers * grid_s(self._decode, (seqs, context))

    def mixed_s(self, chunk: int, computed: int, seqs: int, context: int) -> float | None:
        """Seconds of both in one call, in all layers."""
        return self._model.layers * grid_s(self._mixed, (chunk, computed, seqs, context))

    def ranks_s(self, tokens: int) -> float | None:
        """Seconds of the experts of all layers, and of bringing the tokens to them and back.

        An all-gather of all ranks' tokens and a reduce-scatter of their results, as in vLLM's
        default backend.
        """
        if not self._link or self._data_parallel == 1:
            return None
        moved = self._link.all_gather_s(self._bytes(tokens), self._data_parallel)
        layer = self._experts_s(tokens) + 2 * moved
        return self._model.layers * layer

    def _bytes(self, tokens: int) -> float:
        """Bytes of the hidden states of `tokens`."""
        return tokens * self._model.hidden_size * self._model.bytes_per_parameter

    def _experts_s(self, tokens: int) -> float:
        """One layer's experts on one rank; `tokens` is what every rank brings.

        A rank holds E / ranks of the E experts and gets the tokens of all ranks, a k / E share of
        which chooses any one expert: as many rows as its own tokens have choices. The number of
        experts chosen at all is its expectation for a router that chooses evenly.
        """
        if not self._experts:
            return 0.0
        model = self._model
        unused = (1.0 - model.experts_per_token / model.experts) ** (tokens * self._data_parallel)
        active = model.experts / self._data_parallel * (1.0 - unused)
        return across_s(self._experts, active, tokens)


def _curves(rows: Iterable[Row], variable: str) -> dict[str, Curve]:
    """One curve over `variable` per layer of the table."""
    return curves_by(
        (row["layer"], float(row[variable]), float(row["time_us"]) * US) for row in rows
    )


def _slowdown(rows: Sequence[Row], regime: str) -> Curve:
    """Mean of (unequal - equal) / equal over all rows of each number of sequences."""
    ratios: dict[float, list[float]] = {}
    for row in rows:
        if row["regime"] == regime:
            ratio = float(row["t_skew_us"]) / float(row["t_mean_us"]) - 1.0
            ratios.setdefault(float(row["n"]), []).append(ratio)
    known = {1.0: 0.0} | {n: max(0.0, fmean(values)) for n, values in ratios.items()}
    return Curve(tuple(sorted(known)), tuple(known[n] for n in sorted(known)))


def _grid(
    points: Iterable[tuple[int, int]], table: dict[tuple[int, ...], float], rest: tuple[int, int]
) -> Grid:
    return Grid((CHUNKS, (0, *KV)), tuple(table[(*point, *rest)] for point in points))
