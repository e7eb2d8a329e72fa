"""NVIDIA aiconfigurator's tables: GEMMs over (m, n, k), attention over batch size and length.

Source format: `gemm_perf`, `context_attention_perf`, `generation_attention_perf`, and for several
devices `custom_allreduce_perf` (TensorRT-LLM's, too), for experts `moe_perf`, of aiconfigurator's
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

# aiconfigurator's own constants for operators it has no table of (its device yaml files).
MEMORY_SHARE = 0.8
MEMORY_LATENCY_S = 3e-6
# Decode attention in a large batch reaches this share of the bandwidth in the table itself. Small
# batches beat it, for the benchmark's KV stays in the L2 cache; between the layers of a model it
# does not, so no time below this bound is used.
ATTENTION_MEMORY_SHARE = 0.9
# vLLM's FI_ALLREDUCE_FUSION_MAX_SIZE_MB: the largest all-reduce between so many devices that it
# fuses with the residual and norm behind it, by how the device's name begins, but for a Grace CPU's
# G. Other devices never do.
_FUSED_MIB = {
    "H": {2: 64.0, 4: 2.0, 8: 0.5},
    "B200": {2: 64.0, 4: 32.0, 8: 1.0},
    "B300": {2: 64.0, 4: 64.0, 8: 4.0},
}
_MIB = 2**20
# Where the times are sampled for a profile; decode sequences go up to 256.
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
    """The tables of a device. Numbers may be text; rows of other shapes are skipped."""

    gemm: Versions
    context_attention: Versions
    generation_attention: Versions
    all_reduce: Versions = ()
    """For more than one device; sizes are 16-bit numbers."""
    fused_all_reduce: Versions = ()
    """That of TensorRT-LLM, whose kernel vLLM uses where it fuses; none: taken not to fuse."""
    moe: Versions = ()
    """For models with experts."""


class AiConfiguratorSource:
    """A model of gated MLPs or experts, whose layers are cut over `tensor_parallel` devices.

    That layers of 8-bit weights need inputs of 8 bits is taken to cost nothing: vLLM's compiler
    makes it a part of the operators before them.
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
        """`device` is one of the devices. With `expert_parallel` each has some of the experts as a
        whole, else a part of each. All-reduces of up to `fused_mib` MiB are fused with residual and
        norm; None: as by vLLM's defaults. ValueError where the tables lack what is needed."""
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
        """The tables of a profile. Steps are padded to the CUDA graphs that vLLM captures by
        default for `max_num_seqs`."""
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
        """Seconds of all layers and the embedding, on each of the devices."""
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
        """Seconds of the LM head, in as many equal parts as the table's widest product demands."""
        rows = self._part.vocabulary
        parts = ceil(rows / max(max(curves) for curves in self._head_gemms.values()))
        hidden = self._model.hidden_size
        return parts * _product_s(self._head_gemms, sequences, rows // parts, hidden)

    def prefill_s(self, chunk: int, computed: int) -> float:
        """Attention of all layers: that of the whole prompt of the same number of pairs."""
        return sum(kind.layers * kind.prefill_s(chunk, computed) for kind in self._attention)

    def decode_s(self, seqs: int, context: int) -> float:
        """Attention of all layers: linear in the batch size between the table's."""
        m = self._model
        rate = ATTENTION_MEMORY_SHARE * self._device.memory_bandwidth_bytes_per_s
        held_s = m.kv_bytes_per_token / m.layers * self._part.kv_heads / m.kv_heads / rate
        return sum(
            kind.layers * max(kind.decode_s(seqs, context), seqs * kind.seen(context + 1) * held_s)
            for kind in self._attention
        )

    def _mlp_s(self, tokens: int) -> float:
        """A layer's MLP, or its router and experts."""
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
        """Bringing together the layer's results, and residual and norm: two in, two out."""
        numbers = tokens * self._model.hidden_size
        if self._fused and 2 * numbers <= self._fused_bytes:
            # Sum and norm are in one kernel, which moves the residual besides.
            return curve_s(self._fused, numbers) + self._memory_s(2 * numbers) - MEMORY_LATENCY_S
        return self._all_reduce_s(numbers) + self._memory_s(4 * numbers)

    def _shared_norm_s(self, tokens: int) -> float:
        """What a norm across all devices' heads takes more than one within a device: a kernel that
        squares queries and keys, and an all-reduce of two 32-bit sums of each token (vLLM's
        `model_executor/layers/minimax_rms_norm`)."""
        queries_and_keys = self._part.attention_width + self._part.kv_heads * self._model.head_size
        return self._memory_s(tokens * queries_and_keys) + self._all_reduce_s(4 * tokens)

    def _all_reduce_s(self, numbers: int) -> float:
        """Bringing together so many 16-bit numbers of each device."""
        return curve_s(self._all_reduce, numbers) if self._all_reduce else 0.0

    def _memory_s(self, elements: int) -> float:
        """An elementwise operator that moves `elements` 16-bit numbers."""
        rate = MEMORY_SHARE * self._device.memory_bandwidth_bytes_per_s
        return 2.0 * elements / rate + MEMORY_LATENCY_S

    def _gemm_s(self, m: int, n: int, k: int) -> float:
        """At most what it takes with 16 bits: tables of 8 bits in blocks were measured without CUDA
        graphs, and have the host's 0.2 ms of each small product."""
        return min(_product_s(gemms, m, n, k) for gemms in self._gemms)


def _product_s(gemms: Mapping[int, Mapping[float, Curve]], m: int, n: int, k: int) -> float:
    """An (m, k) by (k, n) product: linear in n, then in k, between the table's sizes."""
    ks = sorted(gemms)
    high = ks[min(bisect_left(ks, k), len(ks) - 1)]
    low = max((k_ for k_ in ks if k_ <= k), default=high)
    below = across_s(gemms[low], n, m)
    if low == high:
        return below * k / high if k > high else below
    return below + (across_s(gemms[high], n, m) - below) * (k - low) / (high - low)


def _fused_mib(device: str, devices: int) -> float:
    """By vLLM's defaults; 0: nothing is fused."""
    name = device.removeprefix("G")
    return next(
        (sizes.get(devices, 0.0) for start, sizes in _FUSED_MIB.items() if name.startswith(start)),
        0.0,
    )
