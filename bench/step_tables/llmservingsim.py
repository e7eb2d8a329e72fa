"""LLMServingSim's tables: layers measured inside vLLM, attention on a four-dimensional grid."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from foretell.latency.devices import model_spec
from foretell.model import ModelSpec
from step_tables import US, Batch, Curve, read_csv

LAYER_OPERATORS = ("qkv_proj", "rotary_emb", "o_proj", "gate_up_proj", "act_fn", "down_proj")
# The grid that every (chunk, KV, sequences, KV) combination was measured on; the table has more
# points, on a second grid that does not share all of them.
CHUNKS = (16, 32, 64, 128, 256, 512, 1024, 2048)
KV = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
DECODES = (1, 2, 4, 8, 16, 32, 64, 128)

Point = tuple[int, ...]


def interpolate(
    table: Callable[[Point], float], axes: tuple[tuple[int, ...], ...], at: tuple[float, ...]
) -> float:
    """Multilinear interpolation of `table` over `axes`; clamped at the edges."""

    def along(axis: int, prefix: Point) -> float:
        if axis == len(axes):
            return table(prefix)
        grid = axes[axis]
        x = min(max(at[axis], grid[0]), grid[-1])
        low = min(bisect_right(grid, x) - 1, len(grid) - 2)
        share = (x - grid[low]) / (grid[low + 1] - grid[low])
        below = along(axis + 1, (*prefix, grid[low])) if share < 1 else 0.0
        above = along(axis + 1, (*prefix, grid[low + 1])) if share > 0 else 0.0
        return below * (1 - share) + above * share

    return along(0, ())


@dataclass(slots=True)
class LlmServingSimTables:
    """One model on one GPU at tensor parallelism 1."""

    model: ModelSpec
    dense: dict[str, Curve]
    per_sequence: dict[str, Curve]
    attention: dict[Point, float]

    def step_s(self, batch: Batch) -> float:
        """Seconds of GPU time of one step."""
        tokens = batch.tokens
        layer = sum(self.dense[n](tokens) for n in LAYER_OPERATORS)
        layer += 2 * self.dense["layernorm"](tokens)
        layer += self.attention_s(batch)
        once = self.dense["embedding"](tokens) + self.dense["final_layernorm"](tokens)
        rows = sum(self.per_sequence[n](batch.sequences) for n in ("lm_head", "sampler"))
        return self.model.layers * layer + once + rows

    def attention_s(self, batch: Batch) -> float:
        """Seconds of one layer's attention call. The table holds one chunk: further ones add up."""
        if not batch.prefills:
            return self._decode_s(batch.decodes, batch.context)
        first, *others = batch.prefills
        seconds = sum(self._prefill_s(q, kv) for q, kv in others)
        if not batch.decodes:
            return seconds + self._prefill_s(*first)
        n = min(batch.decodes, DECODES[-1])
        beyond = self._decode_s(batch.decodes, batch.context) - self._decode_s(n, batch.context)
        axes, at = (CHUNKS, (0, *KV), DECODES, KV), (*first, n, batch.context)
        return seconds + beyond + interpolate(self.attention.__getitem__, axes, at)

    def _decode_s(self, n: int, context: int) -> float:
        axes = ((*DECODES, 256), KV)
        return interpolate(lambda p: self.attention[(0, 0, *p)], axes, (n, context))

    def _prefill_s(self, query: int, computed: int) -> float:
        axes = (CHUNKS, (0, *KV))
        return interpolate(lambda p: self.attention[(*p, 0, 0)], axes, (query, computed))


def curves(path: Path, variable: str) -> dict[str, Curve]:
    """One curve over `variable` per layer of the table."""
    points: dict[str, list[tuple[float, float]]] = {}
    for row in read_csv(path):
        value = float(row["time_us"]) * US
        points.setdefault(row["layer"], []).append((float(row[variable]), value))
    return {layer: Curve.of(p) for layer, p in points.items()}


def rtxpro6000_llama31_8b(data: Path) -> LlmServingSimTables:
    """Llama-3.1-8B, bf16, on an RTX PRO 6000 with vLLM 0.19."""
    folder = data / "llmservingsim/profiler/perf/RTXPRO6000/meta-llama/Llama-3.1-8B/bf16/tp1"
    attention = {
        tuple(int(r[k]) for k in ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")): (
            float(r["time_us"]) * US
        )
        for r in read_csv(folder / "attention.csv.gz")
    }
    return LlmServingSimTables(
        model=model_spec("Llama-3.1-8B"),
        dense=curves(folder / "dense.csv.gz", "tokens"),
        per_sequence=curves(folder / "per_sequence.csv.gz", "sequences"),
        attention=attention,
    )
