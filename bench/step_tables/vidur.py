"""Tables in Vidur's format: operators over tokens, attention over batch size and KV length."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from foretell.latency.devices import device_spec, model_spec
from foretell.model import DeviceSpec, ModelSpec
from step_tables import MS, Batch, Curve, lm_head_s, number, read_csv, relative_fit

VIDUR_GEMMS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")
VIDUR_ELEMENTWISE = (
    "input_layernorm",
    "attn_rope",
    "post_attention_layernorm",
    "mlp_act",
    "add",
)


def vidur_layer_curves(path: Path, device: DeviceSpec) -> dict[str, Curve]:
    """Seconds over tokens of each operator, at tensor parallelism 1.

    The profiler lost kernels at some sizes (split-K GEMMs appear 1,000 times too fast, or empty).
    A GEMM that beats the datasheet's bandwidth or FLOP/s by over 5% is such a loss: dropped, and
    interpolated from its neighbours.
    """
    rows = [r for r in read_csv(path) if int(r["num_tensor_parallel_workers"]) == 1]
    hidden, inner = int(rows[0]["n_embd"]), int(rows[0]["n_expanded_embd"])
    heads, kv_heads = int(rows[0]["n_head"]), int(rows[0]["n_kv_head"])
    weights = {
        "attn_pre_proj": hidden * hidden * (heads + 2 * kv_heads) // heads,
        "attn_post_proj": hidden * hidden,
        "mlp_up_proj": 2 * hidden * inner,
        "mlp_down_proj": hidden * inner,
    }
    curves = {}
    for name in (*VIDUR_GEMMS, *VIDUR_ELEMENTWISE, "emb"):
        points = []
        for row in rows:
            tokens = int(row["num_tokens"])
            seconds = number(row[f"time_stats.{name}.median"]) * MS
            size = weights.get(name, 0)
            bound = max(
                2.0 * size / device.memory_bandwidth_bytes_per_s,
                2.0 * size * tokens / device.flops,
            )
            if seconds >= bound / 1.05:
                points.append((float(tokens), seconds))
        curves[name] = Curve.of(points)
    return curves


@dataclass(slots=True)
class VidurAttention:
    """Attention kernels measured on one model, scaled to another on the same device.

    Decode reads KV bytes: a batch of the target is looked up as the batch of the measured model
    that has the same KV bytes and, as far as the table goes, the same number of (sequence, KV
    head) work items. Prefill is FLOPs: `a + b q + c q kv + d q^2` is fitted to the measured chunks
    and scaled by the ratio of query heads times head size.
    """

    decode: dict[int, Curve]
    prefill: Any
    kv_ratio: float
    head_ratio: float

    @classmethod
    def read(
        cls, rows: list[dict[str, str]], target: ModelSpec, kv_heads: int, heads: int
    ) -> "VidurAttention":
        """From Vidur rows measured with `kv_heads` and `heads` heads of the target's head size."""
        points: dict[int, list[tuple[float, float]]] = {}
        features, seconds = [], []
        for row in rows:
            q, kv = int(row["prefill_chunk_size"]), int(row["kv_cache_size"])
            if row["is_prefill"] == "True":
                if q <= 2048:
                    features.append((1.0, q, q * kv, q * q))
                    seconds.append(number(row["time_stats.attn_prefill.median"]) * MS)
            else:
                batch = int(row["batch_size"])
                value = number(row["time_stats.attn_decode.median"]) * MS
                points.setdefault(batch, []).append((float(kv), value))
        return cls(
            decode={batch: Curve.of(p) for batch, p in points.items()},
            prefill=relative_fit(np.array(features), np.array(seconds)),
            kv_ratio=target.kv_heads / kv_heads,
            head_ratio=target.attention_heads / heads,
        )

    def decode_s(self, batch: int, context: int) -> float:
        """Seconds of one layer's decode attention."""
        if not batch:
            return 0.0
        items = batch * self.kv_ratio
        batches = np.array(sorted(self.decode))
        near = int(batches[np.argmin(np.abs(batches - items))])
        return self.decode[near](context * items / near)

    def prefill_s(self, query: int, computed: int) -> float:
        """Seconds of one layer's attention for one chunk."""
        a, b, c, d = self.prefill
        return float(a + self.head_ratio * (b * query + c * query * computed + d * query * query))


@dataclass(slots=True)
class VidurTables:
    """A model from Vidur-format tables: operators over tokens, attention apart."""

    model: ModelSpec
    device: DeviceSpec
    vocabulary: int
    curves: dict[str, Curve]
    attention: VidurAttention

    def step_s(self, batch: Batch) -> float:
        """Seconds of GPU time of one step."""
        tokens = batch.tokens
        layer = sum(self.curves[n](tokens) for n in (*VIDUR_GEMMS, *VIDUR_ELEMENTWISE))
        # Llama adds a residual twice in a layer; the table holds one addition.
        layer += self.curves["add"](tokens)
        layer += self.attention.decode_s(batch.decodes, batch.context)
        layer += sum(self.attention.prefill_s(q, c) for q, c in batch.prefills)
        head = lm_head_s(self.model, self.vocabulary, batch.sequences, self.device)
        return self.model.layers * layer + self.curves["emb"](tokens) + head


def block_a30_llama2_7b(data: Path) -> VidurTables:
    """Block's A30 tables. Attention was only published for Qwen2-7B: scaled to Llama-2-7b."""
    device, model = device_spec("A30"), model_spec("Llama-2-7b-hf")
    rows = read_csv(data / "block/a30/Qwen2-7B/attention.csv.gz")
    return VidurTables(
        model=model,
        device=device,
        vocabulary=32000,
        curves=vidur_layer_curves(data / "block/a30/Llama-2-7b-hf/mlp.csv.gz", device),
        attention=VidurAttention.read(rows, model, kv_heads=4, heads=28),
    )


def vidur_a100_llama2_7b(data: Path) -> VidurTables:
    """Vidur's A100 tables. Attention: a worker of Llama-2-70b at TP 2 has 32 heads, 4 KV heads."""
    device, model = device_spec("A100-80GB"), model_spec("Llama-2-7b-hf")
    rows = read_csv(data / "vidur/profiling_history/a100_attention_2024-05.csv.gz")
    mlp = data / "vidur/compute/a100/meta-llama/Llama-2-7b-hf/mlp.csv.gz"
    return VidurTables(
        model=model,
        device=device,
        vocabulary=32000,
        curves=vidur_layer_curves(mlp, device),
        attention=VidurAttention.read(rows, model, kv_heads=4, heads=32),
    )
