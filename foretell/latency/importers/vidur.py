"""Tables in Vidur's format: operators over tokens, attention over batch size and KV length.

Source format: `mlp.csv` and `attention.csv` of github.com/microsoft/vidur (MIT), also used by
Block. Times are milliseconds of one layer; only rows of tensor parallelism 1 are used.
"""

from collections.abc import Sequence

from foretell.latency.importers.linear_fit import relative_fit
from foretell.latency.importers.source import MS, Row, StepSource, curve_of, curves_by, lm_head_s
from foretell.latency.tables import curve_s
from foretell.model import Curve, DeviceSpec, ModelSpec

GEMMS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")
ELEMENTWISE = ("input_layernorm", "attn_rope", "post_attention_layernorm", "mlp_act", "add")
_LONGEST_CHUNK = 2048
_LOSS = 1.05


class VidurSource(StepSource):
    """A dense model on one device.

    Attention may have been measured for another model on the same device, with other numbers of
    heads of the same size. Decode reads KV bytes: a batch is looked up as the measured one with
    the same KV bytes and, as far as the table goes, as many (sequence, KV head) work items.
    Prefill is FLOPs: `a + b q + c q kv + d q^2` is fitted to the measured chunks and scaled by the
    ratio of query heads. The LM head is not in the tables.
    """

    def __init__(
        self,
        model: ModelSpec,
        device: DeviceSpec,
        mlp: Sequence[Row],
        attention: Sequence[Row],
    ) -> None:
        if not model.vocabulary:
            raise ValueError(f"the LM head of {model.name} has no known size")
        self._model, self._device = model, device
        self._curves = _layer_curves(mlp, device)
        heads, kv_heads = _heads_of_a_worker(attention)
        self._kv_ratio, self._head_ratio = model.kv_heads / kv_heads, model.attention_heads / heads
        self._decode = _decode_curves(attention)
        self._prefill = _prefill_fit(attention)

    def tokens_s(self, tokens: int) -> float:
        """Seconds of all layers and the embedding."""
        layer = sum(curve_s(self._curves[name], tokens) for name in (*GEMMS, *ELEMENTWISE))
        # Llama adds a residual twice in a layer; the table holds one addition.
        layer += curve_s(self._curves["add"], tokens)
        return self._model.layers * layer + curve_s(self._curves["emb"], tokens)

    def sequences_s(self, sequences: int) -> float:
        """Seconds of the LM head."""
        return lm_head_s(self._model, sequences, self._device)

    def prefill_s(self, chunk: int, computed: int) -> float:
        """Seconds of a chunk's attention in all layers."""
        a, b, c, d = self._prefill
        scaled = self._head_ratio * (b * chunk + c * chunk * computed + d * chunk * chunk)
        return self._model.layers * (a + scaled)

    def decode_s(self, seqs: int, context: int) -> float:
        """Seconds of decode attention in all layers."""
        items = seqs * self._kv_ratio
        near = min(self._decode, key=lambda batch: abs(batch - items))
        return self._model.layers * curve_s(self._decode[near], context * items / near)


def _layer_curves(rows: Sequence[Row], device: DeviceSpec) -> dict[str, Curve]:
    """Seconds over tokens of each operator.

    The profiler lost kernels at some sizes (split-K GEMMs appear 1,000 times too fast, or empty).
    A GEMM that beats the datasheet's bandwidth or FLOP/s by over 5% is such a loss: dropped, and
    interpolated from its neighbours.
    """
    rows = [row for row in rows if int(row["num_tensor_parallel_workers"]) == 1]
    if not rows:
        raise ValueError("no rows of tensor parallelism 1")
    hidden, inner = int(rows[0]["n_embd"]), int(rows[0]["n_expanded_embd"])
    heads, kv_heads = int(rows[0]["n_head"]), int(rows[0]["n_kv_head"])
    weights = {
        "attn_pre_proj": hidden * hidden * (heads + 2 * kv_heads) // heads,
        "attn_post_proj": hidden * hidden,
        "mlp_up_proj": 2 * hidden * inner,
        "mlp_down_proj": hidden * inner,
    }
    curves = {}
    for name in (*GEMMS, *ELEMENTWISE, "emb"):
        points = []
        for row in rows:
            tokens, cell = int(row["num_tokens"]), row[f"time_stats.{name}.median"]
            size = 2.0 * weights.get(name, 0)
            bound = max(
                size / device.memory_bandwidth_bytes_per_s,
                size * tokens / device.flops,
            )
            if cell and float(cell) * MS >= bound / _LOSS:
                points.append((float(tokens), float(cell) * MS))
        curves[name] = curve_of(points)
    return curves


def _heads_of_a_worker(rows: Sequence[Row]) -> tuple[int, int]:
    """Query and KV heads that one worker had; ValueError unless all rows agree."""
    found = {
        tuple(
            int(row[column]) // int(row["num_tensor_parallel_workers"])
            for column in ("n_q_head", "n_kv_head")
        )
        for row in rows
    }
    if len(found) != 1:
        raise ValueError(f"the attention table mixes workers of {sorted(found)} heads")
    heads, kv_heads = found.pop()
    return heads, kv_heads


def _decode_curves(rows: Sequence[Row]) -> dict[int, Curve]:
    """Seconds over context for each batch size."""
    cell = "time_stats.attn_decode.median"
    return curves_by(
        (int(row["batch_size"]), float(row["kv_cache_size"]), float(row[cell]) * MS)
        for row in rows
        if row["is_prefill"] != "True" and row[cell]
    )


def _prefill_fit(rows: Sequence[Row]) -> tuple[float, ...]:
    """The four coefficients of `a + b q + c q kv + d q^2`, seconds."""
    features, seconds = [], []
    for row in rows:
        q, kv = int(row["prefill_chunk_size"]), int(row["kv_cache_size"])
        cell = row["time_stats.attn_prefill.median"]
        if row["is_prefill"] == "True" and q <= _LONGEST_CHUNK and cell:
            features.append((1.0, float(q), float(q * kv), float(q * q)))
            seconds.append(float(cell) * MS)
    return relative_fit(features, seconds)
