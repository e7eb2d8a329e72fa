"""LLMServingSim's tables: layers measured inside vLLM, attention on a four-dimensional grid.

Source format: `profiler/perf/DEVICE/MODEL/DTYPE/tpN/*.csv` of github.com/casys-kaist/LLMServingSim
(MIT). All times are microseconds of one layer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

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


class _Attention:
    """The table of attention, microseconds of a layer; what did not fit the device is filled in."""

    def __init__(self, measured: dict[tuple[int, ...], float]) -> None:
        self._measured = measured

    def measured(self, axis: int, values: Sequence[int]) -> tuple[int, ...]:
        """Those of `values` that were measured alone behind the least context."""
        alone = [(0,) * axis + (v, KV[0]) + (0,) * (2 - axis) for v in values]
        found = tuple(v for v, at in zip(values, alone, strict=True) if at in self._measured)
        if not found:
            raise ValueError(f"the attention table holds nothing but {POINT[axis]} of other sizes")
        return found

    def us(self, point: tuple[int, ...]) -> float:
        """The measured time, or the sum of both parts, or in proportion to the context."""
        if point in self._measured:
            return self._measured[point]
        chunk, computed, seqs, context = point
        if chunk and seqs:
            return self.us((chunk, computed, 0, 0)) + self.us((0, 0, seqs, context))
        if computed > KV[0]:
            return self._longer((chunk, computed // 2, 0, 0))
        if context > KV[0]:
            return self._longer((0, 0, seqs, context // 2))
        raise ValueError(f"the attention table lacks {dict(zip(POINT, point, strict=True))}")

    def _longer(self, half: tuple[int, ...]) -> float:
        """Behind twice the context: once more what doubling `half`'s did, for that is linear."""
        chunk, computed, seqs, context = half
        here = self.us(half)
        if max(computed, context) <= KV[0]:
            return 2.0 * here
        return max(here, 3.0 * here - 2.0 * self.us((chunk, computed // 2, seqs, context // 2)))


class LlmServingSimSource(StepSource):
    """One model on `tensor_parallel` devices, or on as many ranks that share their experts.

    The source also measured batches in which a few contexts are far longer than the others
    (`skew.csv`); what is said of attention here is for equal contexts.
    """

    def __init__(
        self,
        model: ModelSpec,
        dense: Iterable[Row],
        per_sequence: Iterable[Row],
        attention: Iterable[Row],
        *,
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
        measured = {tuple(int(row[k]) for k in POINT): float(row["time_us"]) for row in attention}
        table = _Attention(measured)
        chunks, decodes = table.measured(0, CHUNKS), table.measured(2, (*DECODES, 256))
        few = decodes[: len(DECODES)]
        self._prefill = Grid(
            (chunks, (0, *KV)),
            tuple(table.us((c, kv, 0, 0)) * US for c, kv in product(chunks, (0, *KV))),
        )
        self._decode = Grid(
            (decodes, KV),
            tuple(table.us((0, 0, n, kv)) * US for n, kv in product(decodes, KV)),
        )
        self._mixed = Grid(
            (chunks, (0, *KV), few, KV),
            tuple(table.us(point) * US for point in product(chunks, (0, *KV), few, KV)),
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
        """Bytes of the hidden states of `tokens`, which are 16-bit whatever the weights are."""
        return 2.0 * tokens * self._model.hidden_size

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
