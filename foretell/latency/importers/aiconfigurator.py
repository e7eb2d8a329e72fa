"""NVIDIA aiconfigurator's tables: GEMMs over (m, n, k), attention over batch size and length.

Source format: `gemm_perf`, `context_attention_perf` and `generation_attention_perf` of
aiconfigurator's `systems/data/DEVICE/.../vllm/VERSION` (Apache-2.0). Times are milliseconds.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any

from foretell.latency.importers.source import MS, StepSource, across_s, curve_of, curves_by
from foretell.latency.tables import curve_s
from foretell.model import Curve, DeviceSpec, ModelSpec
from foretell.model.batch import prefill_pairs

# aiconfigurator's own constants for operators it has no table of (its device yaml files).
MEMORY_SHARE = 0.8
MEMORY_LATENCY_S = 3e-6
# Decode attention in a large batch reaches this share of the bandwidth in the table itself. Small
# batches beat it, for the benchmark's KV stays in the L2 cache; between the layers of a model it
# does not, so no time below this bound is used.
ATTENTION_MEMORY_SHARE = 0.9


class AiConfiguratorSource(StepSource):
    """A dense bf16 model with a gated MLP, on one device.

    Rows are mappings with the columns of the tables; those of other types, heads and windows are
    skipped.
    """

    def __init__(
        self,
        model: ModelSpec,
        device: DeviceSpec,
        *,
        gemm: Iterable[Mapping[str, Any]],
        context_attention: Iterable[Mapping[str, Any]],
        generation_attention: Iterable[Mapping[str, Any]],
    ) -> None:
        if model.experts or not (model.mlp_width and model.vocabulary):
            raise ValueError(f"{model.name} is no dense model of known sizes")
        self._model, self._device = model, device
        self._gemms = _gemm_curves(gemm, min(model.hidden_size, model.mlp_width))
        self._prefill = curve_of(
            (prefill_pairs(int(row["isl"]), 0), float(row["latency"]) * MS)
            for row in context_attention
            if _is_of(row, model) and int(row["batch_size"]) == 1
        )
        self._decode = curves_by(
            (float(row["batch_size"]), float(row["step"]), float(row["latency"]) * MS)
            for row in generation_attention
            if _is_of(row, model)
        )
        if not self._decode:
            raise ValueError(f"no decode attention with the heads of {model.name}")

    def tokens_s(self, tokens: int) -> float:
        """Seconds of all layers and the embedding."""
        m, hidden = self._model, self._model.hidden_size
        heads = m.attention_heads * m.head_size
        qkv = heads + 2 * m.kv_heads * m.head_size
        layer = (
            self._gemm_s(tokens, qkv, hidden)
            + self._gemm_s(tokens, hidden, heads)
            + self._gemm_s(tokens, 2 * m.mlp_width, hidden)
            + self._gemm_s(tokens, hidden, m.mlp_width)
            + 2 * self._memory_s(4 * tokens * hidden)  # residual and norm: two in, two out
            + self._memory_s(2 * tokens * qkv)  # rotary embedding and KV write
            + self._memory_s(3 * tokens * m.mlp_width)  # activation: two in, one out
        )
        return m.layers * layer + self._memory_s(2 * tokens * hidden)

    def sequences_s(self, sequences: int) -> float:
        """Seconds of the LM head, as two halves: the table ends at n = 65,536."""
        return 2 * self._gemm_s(sequences, self._model.vocabulary // 2, self._model.hidden_size)

    def prefill_s(self, chunk: int, computed: int) -> float:
        """Attention of all layers: that of the whole prompt of the same number of pairs."""
        return self._model.layers * curve_s(self._prefill, prefill_pairs(chunk, computed))

    def decode_s(self, seqs: int, context: int) -> float:
        """Attention of all layers: linear in the batch size between the table's."""
        m = self._model
        rate = ATTENTION_MEMORY_SHARE * self._device.memory_bandwidth_bytes_per_s
        bound = seqs * (context + 1) * m.kv_bytes_per_token / rate
        return max(m.layers * across_s(self._decode, seqs, context), bound)

    def _memory_s(self, elements: int) -> float:
        """An elementwise operator that moves `elements` 16-bit numbers."""
        rate = MEMORY_SHARE * self._device.memory_bandwidth_bytes_per_s
        return 2.0 * elements / rate + MEMORY_LATENCY_S

    def _gemm_s(self, m: int, n: int, k: int) -> float:
        """An (m, k) by (k, n) product: linear in n, then in k, between the table's sizes."""
        ks = sorted(self._gemms)
        high = ks[min(bisect_left(ks, k), len(ks) - 1)]
        low = max((k_ for k_ in ks if k_ <= k), default=high)
        below = across_s(self._gemms[low], n, m)
        if low == high:
            return below * k / high if k > high else below
        return below + (across_s(self._gemms[high], n, m) - below) * (k - low) / (high - low)


def _gemm_curves(rows: Iterable[Mapping[str, Any]], least_k: int) -> dict[int, dict[float, Curve]]:
    """Seconds over m for each k of at least `least_k` and, below it, each n."""
    found = curves_by(
        ((int(row["k"]), float(row["n"])), float(row["m"]), float(row["latency"]) * MS)
        for row in rows
        if row["gemm_dtype"] == "bfloat16" and int(row["k"]) >= least_k
    )
    if not found:
        raise ValueError(f"no bfloat16 GEMM with k >= {least_k}")
    curves: dict[int, dict[float, Curve]] = {}
    for (k, n), curve in found.items():
        curves.setdefault(k, {})[n] = curve
    return curves


def _is_of(row: Mapping[str, Any], model: ModelSpec) -> bool:
    """Whether the row is bf16 full attention with exactly this model's heads."""
    return (
        int(row["num_heads"]) == model.attention_heads
        and int(row["num_key_value_heads"]) == model.kv_heads
        and int(row["head_dim"]) == model.head_size
        and int(row["window_size"]) == 0
        and row["kv_cache_dtype"] == "bfloat16"
    )
