"""NVIDIA aiconfigurator's tables: GEMMs over (m, n, k), attention over batch size and length.

Source: `gemm_perf`, `context_attention_perf` and `generation_attention_perf`, with several devices
also `custom_allreduce_perf` (TensorRT-LLM's, too), with experts `moe_perf`, from aiconfigurator's
`systems/data/DEVICE/.../vllm/VERSION` (Apache-2.0). Times are milliseconds.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import ceil

from foretell.latency.importers.aiconfigurator_rows import (
    SIXTEEN_BIT,
    Attention,
    Heads,
    Part,
    Types,
    Versions,
    all_reduce_curve,
    expert_curve,
    gemm_curves,
)
from foretell.latency.importers.curves import across_s
from foretell.latency.model_config import is_of_experts
from foretell.latency.tables import curve_s, graph_sizes
from foretell.model import Curve, DeviceSpec, Grid, ModelSpec, StepTables

# aiconfigurator's constants for operators without a table (from its device yaml files).
MEMORY_SHARE = 0.8
MEMORY_LATENCY_S = 3e-6
# Decode attention in a large batch reaches this share of the bandwidth in the table itself. Small
# batches exceed it, because the benchmark's KV stays in the L2 cache. Between the layers of a model
# it does not, so this share is a lower bound of the time.
ATTENTION_MEMORY_SHARE = 0.9
# vLLM's FI_ALLREDUCE_FUSION_MAX_SIZE_MB: the largest all-reduce between so many devices that vLLM
# fuses with the residual and norm behind it, by the prefix of the device's name (without the G of
# a Grace CPU). On other devices it fuses none.
_FUSED_MIB = {
    "H": {2: 64.0, 4: 2.0, 8: 0.5},
    "B200": {2: 64.0, 4: 32.0, 8: 1.0},
    "B300": {2: 64.0, 4: 64.0, 8: 4.0},
}
_MIB = 2**20
# The points at which a profile samples the times; decode goes up to 256 sequences.
_TOKENS = (*range(1, 9), *range(16, 257, 8), *range(272, 2049, 16))
_SEQUENCES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)
_PREFILLS = (
    (1, 16, 32, 64, 128, 256, 512, 1024, 2048),
    (0, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
)
_DECODES = (
    (1, 2, 4, 8, 16, 32, 64, 128, 256),
    (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
)


@dataclass(frozen=True, slots=True)
class AiConfiguratorTables:
    """The tables of a device. Numbers may be text; rows with other shapes are skipped."""

    gemm: Versions
    context_attention: Versions
    generation_attention: Versions
    all_reduce: Versions = ()
    """Needed for more than one device; sizes are counts of 16-bit numbers."""
    fused_all_reduce: Versions = ()
    """TensorRT-LLM's table, whose kernel vLLM uses if it fuses; empty: no fusion is assumed."""
    moe: Versions = ()
    """Needed for models with experts."""


class AiConfiguratorSource:
    """A model of gated MLPs or experts, whose layers are cut over `tensor_parallel` devices.

    The quantisation of inputs for layers with 8-bit weights is assumed to be free, because vLLM's
    compiler fuses it with the operators before.
    """

    def __init__(
        self,
        model: ModelSpec,
        device: DeviceSpec,
        tables: AiConfiguratorTables,
        *,
        tensor_parallel: int = 1,
        expert_parallel: bool = False,
        types: Types | None = None,
        fused_mib: float | None = None,
    ) -> None:
        """`device` is one of the devices. With `expert_parallel` each device has some whole
        experts, otherwise a part of each expert. All-reduces of up to `fused_mib` MiB are fused
        with residual and norm; None: vLLM's default. ValueError if the tables lack a part."""
        if model.kv_latent_size or not (model.mlp_width and model.vocabulary):
            raise ValueError(f"{model.name} is no model of known sizes that keeps keys and values")
        types = types or Types()
        self._model, self._device = model, device
        self._part = part = Part.of(model, tensor_parallel)
        least_k = min(model.hidden_size, part.attention_width)
        if not model.experts:
            least_k = min(least_k, part.mlp_width)
        gemms = list(tables.gemm)
        self._head_gemms = gemm_curves(gemms, SIXTEEN_BIT, least_k)
        self._gemms = [self._head_gemms]
        if types.weights != SIXTEEN_BIT and not is_of_experts(types.weights):
            self._gemms.append(gemm_curves(gemms, types.weights, least_k))
        context, generation = list(tables.context_attention), list(tables.generation_attention)
        full = model.layers - model.windowed_layers
        kinds = ((full, 0), (model.windowed_layers, model.window_tokens))
        heads = Heads(part.heads, part.kv_heads, model.head_size, types.kv_cache)
        self._attention = [
            Attention.of(context, generation, layers, window, heads)
            for layers, window in kinds
            if layers
        ]
        self._experts = None
        if model.experts:
            cut = (1, part.devices) if expert_parallel else (part.devices, 1)
            self._experts = expert_curve(tables.moe, model, cut, types)
        self._all_reduce = self._fused = None
        if part.devices > 1:
            self._all_reduce = all_reduce_curve(tables.all_reduce, part)
            if fused_mib is None:
                fused_mib = _fused_mib(device.name, part.devices)
            fused = list(tables.fused_all_reduce)
            if fused and fused_mib:
                self._fused = all_reduce_curve(fused, part)
        self._fused_bytes = (fused_mib or 0.0) * _MIB

    def sampled(self, max_num_seqs: int) -> StepTables:
        """Sample the tables of a profile. Steps are padded to the sizes of CUDA graphs that vLLM
        captures by default for `max_num_seqs`."""
        return StepTables(
            tokens=Curve(_TOKENS, tuple(map(self.tokens_s, _TOKENS))),
            sequences=Curve(_SEQUENCES, tuple(map(self.sequences_s, _SEQUENCES))),
            prefill=Grid(_PREFILLS, tuple(self.prefill_s(*at) for at in product(*_PREFILLS))),
            decode=Grid(_DECODES, tuple(self.decode_s(*at) for at in product(*_DECODES))),
            mixed=None,
            ranks=None,
            graph_sizes=graph_sizes(max_num_seqs),
        )

    def tokens_s(self, tokens: int) -> float:
        """Seconds of all layers without attention and of the embedding, on each device."""
        m, part, hidden = self._model, self._part, self._model.hidden_size
        qkv = part.attention_width + 2 * part.kv_heads * m.head_size
        layer = (
            self._gemm_s(tokens, qkv, hidden)
            + self._gemm_s(tokens, hidden, part.attention_width)
            + self._memory_s(2 * tokens * qkv)  # rotary embedding and KV write
            + self._mlp_s(tokens)
            + 2 * self._joined_s(tokens)
        )
        if m.norms_across_heads and part.devices > 1:
            layer += self._shared_norm_s(tokens)
        embedding = self._memory_s(2 * tokens * hidden) + self._all_reduce_s(tokens * hidden)
        return m.layers * layer + embedding

    def sequences_s(self, sequences: int) -> float:
        """Seconds of the LM head, cut into equal parts no wider than the table's widest product."""
        rows = self._part.vocabulary
        parts = ceil(rows / max(max(curves) for curves in self._head_gemms.values()))
        hidden = self._model.hidden_size
        return parts * _product_s(self._head_gemms, sequences, rows // parts, hidden)

    def prefill_s(self, chunk: int, computed: int) -> float:
        """Seconds of attention of all layers, as for a whole prompt with the same pairs."""
        return sum(kind.layers * kind.prefill_s(chunk, computed) for kind in self._attention)

    def decode_s(self, seqs: int, context: int) -> float:
        """Seconds of attention of all layers, linear in the batch size between the table's."""
        m = self._model
        rate = ATTENTION_MEMORY_SHARE * self._device.memory_bandwidth_bytes_per_s
        held_s = m.kv_bytes_per_token / m.layers * self._part.kv_heads / m.kv_heads / rate
        return sum(
            kind.layers * max(kind.decode_s(seqs, context), seqs * kind.seen(context + 1) * held_s)
            for kind in self._attention
        )

    def _mlp_s(self, tokens: int) -> float:
        """Seconds of a layer's MLP, or of its router and experts."""
        hidden, width = self._model.hidden_size, self._part.mlp_width
        if self._experts:
            router = _product_s(self._head_gemms, tokens, self._model.experts, hidden)
            return router + curve_s(self._experts, tokens)
        return (
            self._gemm_s(tokens, 2 * width, hidden)
            + self._gemm_s(tokens, hidden, width)
            + self._memory_s(3 * tokens * width)  # activation: two in, one out
        )

    def _joined_s(self, tokens: int) -> float:
        """Seconds of a layer's all-reduce, and of residual and norm: two in, two out."""
        numbers = tokens * self._model.hidden_size
        if self._fused and 2 * numbers <= self._fused_bytes:
            # One kernel for all-reduce and norm, which also moves the residual.
            return curve_s(self._fused, numbers) + self._memory_s(2 * numbers) - MEMORY_LATENCY_S
        return self._all_reduce_s(numbers) + self._memory_s(4 * numbers)

    def _shared_norm_s(self, tokens: int) -> float:
        """Extra seconds of a norm across the heads of all devices: a kernel that squares queries
        and keys, and an all-reduce of two 32-bit sums per token (vLLM's
        `model_executor/layers/minimax_rms_norm`)."""
        queries_and_keys = self._part.attention_width + self._part.kv_heads * self._model.head_size
        return self._memory_s(tokens * queries_and_keys) + self._all_reduce_s(4 * tokens)

    def _all_reduce_s(self, numbers: int) -> float:
        """Seconds of an all-reduce of so many 16-bit numbers."""
        return curve_s(self._all_reduce, numbers) if self._all_reduce else 0.0

    def _memory_s(self, elements: int) -> float:
        """Seconds of an elementwise operator that moves `elements` 16-bit numbers."""
        rate = MEMORY_SHARE * self._device.memory_bandwidth_bytes_per_s
        return 2.0 * elements / rate + MEMORY_LATENCY_S

    def _gemm_s(self, m: int, n: int, k: int) -> float:
        """Seconds of a product, at most those with 16 bits: blockwise 8-bit tables were measured
        without CUDA graphs, so every small product has 0.2 ms of the host's time."""
        return min(_product_s(gemms, m, n, k) for gemms in self._gemms)


def _product_s(gemms: Mapping[int, Mapping[float, Curve]], m: int, n: int, k: int) -> float:
    """Seconds of an (m, k) by (k, n) product: linear in n, then in k, between the table's sizes."""
    ks = sorted(gemms)
    high = ks[min(bisect_left(ks, k), len(ks) - 1)]
    low = max((k_ for k_ in ks if k_ <= k), default=high)
    below = across_s(gemms[low], n, m)
    if low == high:
        return below * k / high if k > high else below
    return below + (across_s(gemms[high], n, m) - below) * (k - low) / (high - low)


def _fused_mib(device: str, devices: int) -> float:
    """The largest fused all-reduce by vLLM's defaults, in MiB; 0: none is fused."""
    name = device.removeprefix("G")
    return next(
        (sizes.get(devices, 0.0) for start, sizes in _FUSED_MIB.items() if name.startswith(start)),
        0.0,
    )
