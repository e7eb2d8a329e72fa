"""NVIDIA aiconfigurator's tables: GEMMs over (m, n, k), attention over batch size and length."""

from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from foretell.latency.devices import device_spec, model_spec
from foretell.model import DeviceSpec, ModelSpec
from foretell.model.batch import prefill_pairs
from step_tables import MS, Batch, Curve

# aiconfigurator's own constants for operators it has no table of (its h100_sxm.yaml).
MEMORY_SHARE = 0.8
MEMORY_LATENCY_S = 3e-6
# Decode attention in a large batch reaches this share of the bandwidth in the table itself. Small
# batches beat it, for the benchmark's KV stays in the L2 cache; between the layers of a model it
# does not, so no time below this bound is used.
ATTENTION_MEMORY_SHARE = 0.9


@dataclass(slots=True)
class AiConfiguratorTables:
    """A dense bf16 model with a gated MLP, one GPU."""

    model: ModelSpec
    device: DeviceSpec
    inner: int
    vocabulary: int
    gemms: dict[tuple[int, int], Curve]
    prefill: Curve
    decode: dict[int, Curve]

    def step_s(self, batch: Batch) -> float:
        """Seconds of GPU time of one step."""
        m, hidden, tokens = self.model, self.model.hidden_size, batch.tokens
        qkv = (m.attention_heads + 2 * m.kv_heads) * m.head_size
        layer = (
            self.gemm_s(tokens, qkv, hidden)
            + self.gemm_s(tokens, hidden, hidden)
            + self.gemm_s(tokens, 2 * self.inner, hidden)
            + self.gemm_s(tokens, hidden, self.inner)
            + 2 * self.memory_s(4 * tokens * hidden)  # residual and norm: two in, two out
            + self.memory_s(2 * tokens * qkv)  # rotary embedding and KV write
            + self.memory_s(3 * tokens * self.inner)  # activation: two in, one out
            + self.decode_s(batch.decodes, batch.context)
            + sum(self.prefill_s(q, c) for q, c in batch.prefills)
        )
        # The table ends at n = 65,536: the LM head is two halves.
        head = 2 * self.gemm_s(batch.sequences, self.vocabulary // 2, hidden)
        return m.layers * layer + self.memory_s(2 * tokens * hidden) + head

    def memory_s(self, elements: int) -> float:
        """An elementwise operator that moves `elements` 16-bit numbers."""
        rate = MEMORY_SHARE * self.device.memory_bandwidth_bytes_per_s
        return 2.0 * elements / rate + MEMORY_LATENCY_S

    def gemm_s(self, m: int, n: int, k: int) -> float:
        """An (m, k) by (k, n) product: linear in n, then in k, between the table's sizes."""
        ks = sorted({k_ for _, k_ in self.gemms})
        high = ks[bisect_left(ks, k)]
        low = max((k_ for k_ in ks if k_ <= k), default=high)
        below = self._gemm_n_s(m, n, low)
        if low == high:
            return below
        return below + (self._gemm_n_s(m, n, high) - below) * (k - low) / (high - low)

    def _gemm_n_s(self, m: int, n: int, k: int) -> float:
        ns = sorted(n_ for n_, k_ in self.gemms if k_ == k)
        return Curve.of([(n_, self.gemms[n_, k](m)) for n_ in ns])(n)

    def prefill_s(self, query: int, computed: int) -> float:
        """A chunk behind computed tokens: the whole prompt of the same number of pairs."""
        return self.prefill(prefill_pairs(query, computed))

    def decode_s(self, batch: int, context: int) -> float:
        """Decode attention: linear in the batch size between the table's."""
        if not batch:
            return 0.0
        curve = Curve.of([(b, c(context)) for b, c in self.decode.items()])
        m = self.model
        kv_bytes = batch * (context + 1) * m.kv_bytes_per_token / m.layers
        rate = ATTENTION_MEMORY_SHARE * self.device.memory_bandwidth_bytes_per_s
        return max(curve(batch), kv_bytes / rate)


def attention_rows(path: Path, model: ModelSpec) -> list[dict[str, Any]]:
    """The bf16, full-attention rows of exactly this model's heads."""
    wanted = {
        "num_heads": model.attention_heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_size,
        "window_size": 0,
        "kv_cache_dtype": "bfloat16",
    }
    rows = pq.read_table(path, filters=[(k, "=", v) for k, v in wanted.items()]).to_pylist()
    return [dict(r) for r in rows]


def h100_llama31_8b(data: Path) -> AiConfiguratorTables:
    """Llama-3.1-8B, bf16, on an H100 SXM with the kernels of vLLM 0.24."""
    model, root = model_spec("Llama-3.1-8B"), data / "aiconfigurator/h100_sxm"
    points: dict[tuple[int, int], list[tuple[float, float]]] = {}
    path = root / "gemm/vllm/0.24.0/gemm_perf.parquet"
    for r in pq.read_table(path, filters=[("gemm_dtype", "=", "bfloat16")]).to_pylist():
        points.setdefault((r["n"], r["k"]), []).append((r["m"], r["latency"] * MS))
    attention = root / "attention/vllm/0.24.0"
    prefill = [
        (prefill_pairs(r["isl"], 0), r["latency"] * MS)
        for r in attention_rows(attention / "context_attention_perf.parquet", model)
        if r["batch_size"] == 1
    ]
    decode: dict[int, list[tuple[float, float]]] = {}
    for r in attention_rows(attention / "generation_attention_perf.parquet", model):
        decode.setdefault(r["batch_size"], []).append((r["step"], r["latency"] * MS))
    return AiConfiguratorTables(
        model=model,
        device=device_spec("H100-SXM"),
        inner=14336,
        vocabulary=128256,
        gemms={shape: Curve.of(p) for shape, p in points.items() if shape[1] >= 4096},
        prefill=Curve.of(prefill),
        decode={batch: Curve.of(p) for batch, p in decode.items()},
    )
