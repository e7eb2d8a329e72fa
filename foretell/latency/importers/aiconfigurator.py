"""NVIDIA aiconfigurator's tables: GEMMs over (m, n, k), attention over batch size and length.

Source format: `gemm_perf`, `context_attention_perf`, `generation_attention_perf`, and for several
devices `custom_allreduce_perf` (TensorRT-LLM's, too), for experts `moe_perf`, of aiconfigurator's
`systems/data/DEVICE/.../vllm/VERSION` (Apache-2.0). Times are milliseconds.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
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
# How tokens choose experts, the likeliest first: some are chosen more often than others. What is
# not named here comes last.
_ROUTINGS = ("power_law_1.01", "power_law_1.2", "balanced")
_16_BIT = "bfloat16"
# vLLM's FI_ALLREDUCE_FUSION_MAX_SIZE_MB: the largest all-reduce between so many devices that it
# fuses with the residual and norm behind it, by how the device's name begins, but for a Grace CPU's
# G. Other devices never do.
_FUSED_MIB = {
    "H": {2: 64.0, 4: 2.0, 8: 0.5},
    "B200": {2: 64.0, 4: 32.0, 8: 1.0},
    "B300": {2: 64.0, 4: 64.0, 8: 4.0},
}
_MIB = 2**20
_SPARE = 1.02  # on what parameters are counted to be, for norms and biases

Rows = Sequence[Mapping[str, Any]]
Versions = Iterable[Rows]
"""The rows of one table, of several versions of vLLM; the first that has what is needed is used."""


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


@dataclass(frozen=True, slots=True)
class Types:
    """The types of numbers, by the tables' names: those of the layers' weights, and of the KV
    cache. Head and embedding are 16-bit always."""

    weights: str = _16_BIT
    kv_cache: str = _16_BIT


class AiConfiguratorSource(StepSource):
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
        self._part = part = _Part.of(model, tensor_parallel)
        least_k = min(model.hidden_size, part.attention_width)
        if not model.experts:
            least_k = min(least_k, part.mlp_width)
        gemms = list(tables.gemm)
        self._head_gemms = _gemm_curves(gemms, _16_BIT, least_k)
        self._gemms = [self._head_gemms]
        if types.weights != _16_BIT:
            self._gemms.append(_gemm_curves(gemms, types.weights, least_k))
        self._prefill = curve_of(
            (prefill_pairs(int(row["isl"]), 0), float(row["latency"]) * MS)
            for row in _attending(tables.context_attention, model, part, types)
            if int(row["batch_size"]) == 1
        )
        self._decode = curves_by(
            (float(row["batch_size"]), float(row["step"]), float(row["latency"]) * MS)
            for row in _attending(tables.generation_attention, model, part, types)
        )
        self._experts = None
        if model.experts:
            cut = (1, part.devices) if expert_parallel else (part.devices, 1)
            self._experts = _expert_curve(tables.moe, model, cut, types)
        self._all_reduce = self._fused = None
        if part.devices > 1:
            self._all_reduce = _all_reduce_curve(tables.all_reduce, part)
            if fused_mib is None:
                fused_mib = _fused_mib(device.name, part.devices)
            fused = list(tables.fused_all_reduce)
            if fused and fused_mib:
                self._fused = _all_reduce_curve(fused, part)
        self._fused_bytes = (fused_mib or 0.0) * _MIB

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
        embedding = self._memory_s(2 * tokens * hidden) + self._all_reduce_s(tokens)
        return m.layers * layer + embedding

    def sequences_s(self, sequences: int) -> float:
        """Seconds of the LM head, in as many equal parts as the table's widest product demands."""
        rows = self._part.vocabulary
        parts = ceil(rows / max(max(curves) for curves in self._head_gemms.values()))
        hidden = self._model.hidden_size
        return parts * _product_s(self._head_gemms, sequences, rows // parts, hidden)

    def prefill_s(self, chunk: int, computed: int) -> float:
        """Attention of all layers: that of the whole prompt of the same number of pairs."""
        return self._model.layers * curve_s(self._prefill, prefill_pairs(chunk, computed))

    def decode_s(self, seqs: int, context: int) -> float:
        """Attention of all layers: linear in the batch size between the table's."""
        m = self._model
        rate = ATTENTION_MEMORY_SHARE * self._device.memory_bandwidth_bytes_per_s
        held = m.kv_bytes_per_token * self._part.kv_heads / m.kv_heads
        bound = seqs * (context + 1) * held / rate
        return max(m.layers * across_s(self._decode, seqs, context), bound)

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
        return self._all_reduce_s(tokens) + self._memory_s(4 * numbers)

    def _all_reduce_s(self, tokens: int) -> float:
        """Bringing together the layer's results of all devices."""
        if self._all_reduce is None:
            return 0.0
        return curve_s(self._all_reduce, tokens * self._model.hidden_size)

    def _memory_s(self, elements: int) -> float:
        """An elementwise operator that moves `elements` 16-bit numbers."""
        rate = MEMORY_SHARE * self._device.memory_bandwidth_bytes_per_s
        return 2.0 * elements / rate + MEMORY_LATENCY_S

    def _gemm_s(self, m: int, n: int, k: int) -> float:
        """At most what it takes with 16 bits: tables of 8 bits in blocks were measured without CUDA
        graphs, and have the host's 0.2 ms of each small product."""
        return min(_product_s(gemms, m, n, k) for gemms in self._gemms)


@dataclass(frozen=True, slots=True)
class _Part:
    """What one of several devices has of each layer."""

    devices: int
    heads: int
    kv_heads: int
    attention_width: int
    """Numbers of all its heads."""
    mlp_width: int
    """Inner width of its part of the MLP; of experts that of the whole, as in their table."""
    vocabulary: int

    @classmethod
    def of(cls, model: ModelSpec, devices: int) -> "_Part":
        """ValueError for a number of devices that cannot have equal parts.

        Devices of which there are more than KV heads have a copy of one each.
        """
        many_kv = model.kv_heads % devices == 0
        even = model.attention_heads % devices == 0 and (many_kv or devices % model.kv_heads == 0)
        if not even or (not model.experts and model.mlp_width % devices):
            raise ValueError(f"{model.name} cannot be cut into {devices} equal parts")
        heads = model.attention_heads // devices
        return cls(
            devices,
            heads,
            model.kv_heads // devices if many_kv else 1,
            heads * model.head_size,
            model.mlp_width if model.experts else model.mlp_width // devices,
            ceil(model.vocabulary / devices),
        )


def _product_s(gemms: Mapping[int, Mapping[float, Curve]], m: int, n: int, k: int) -> float:
    """An (m, k) by (k, n) product: linear in n, then in k, between the table's sizes."""
    ks = sorted(gemms)
    high = ks[min(bisect_left(ks, k), len(ks) - 1)]
    low = max((k_ for k_ in ks if k_ <= k), default=high)
    below = across_s(gemms[low], n, m)
    if low == high:
        return below * k / high if k > high else below
    return below + (across_s(gemms[high], n, m) - below) * (k - low) / (high - low)


def _first(versions: Versions, wanted: Callable[[Mapping[str, Any]], bool], what: str) -> Rows:
    """The wanted rows of the first version that has any; ValueError where none has `what`."""
    for rows in versions:
        found = [row for row in rows if wanted(row)]
        if found:
            return found
    raise ValueError(f"the tables have no {what}")


def _gemm_curves(versions: Versions, kind: str, least_k: int) -> dict[int, dict[float, Curve]]:
    """Seconds over m for each k, from the last up to `least_k` on, and below it for each n."""
    rows = _first(versions, lambda row: row["gemm_dtype"] == kind, f"GEMM of {kind}")
    ks = {int(row["k"]) for row in rows}
    first = max((k for k in ks if k <= least_k), default=min(ks))
    found = curves_by(
        ((int(row["k"]), float(row["n"])), float(row["m"]), float(row["latency"]) * MS)
        for row in rows
        if int(row["k"]) >= first
    )
    curves: dict[int, dict[float, Curve]] = {}
    for (k, n), curve in found.items():
        curves.setdefault(k, {})[n] = curve
    return curves


def _attending(versions: Versions, model: ModelSpec, part: _Part, types: Types) -> Rows:
    """The rows of full attention with exactly these heads; older tables have no other."""

    def attends(row: Mapping[str, Any]) -> bool:
        return (
            int(row["num_heads"]) == part.heads
            and int(row["num_key_value_heads"]) == part.kv_heads
            and int(row["head_dim"]) == model.head_size
            and int(row.get("window_size", 0)) == 0
            and row["kv_cache_dtype"] == types.kv_cache
        )

    heads = f"{part.heads} and {part.kv_heads} heads of {model.head_size}"
    return _first(versions, attends, f"attention with {heads} and a KV cache of {types.kv_cache}")


def _expert_curve(
    versions: Versions, model: ModelSpec, cut: tuple[int, int], types: Types
) -> Curve:
    """Seconds of a layer's experts over the tokens: each is cut into the first of `cut` parts, and
    all are spread over the second's number of devices."""
    hidden = model.hidden_size
    attention = 2 * hidden * model.head_size * (model.attention_heads + model.kv_heads)
    chosen_experts = 3 * hidden * model.mlp_width * model.experts_per_token
    body = model.layers * (attention + chosen_experts + hidden * model.experts)
    if model.active_parameters > _SPARE * (body + 2 * model.vocabulary * hidden):
        raise ValueError(f"{model.name} has layers or experts that every token uses")
    wanted = {
        "hidden_size": model.hidden_size,
        "inter_size": model.mlp_width,
        "topk": model.experts_per_token,
        "num_experts": model.experts,
        "moe_tp_size": cut[0],
        "moe_ep_size": cut[1],
    }
    found = _first(
        versions,
        lambda row: (
            row["moe_dtype"] == types.weights
            and all(int(row[name]) == value for name, value in wanted.items())
        ),
        f"experts of {types.weights} as {model.name} has them, over {max(cut)} devices",
    )
    routings = dict.fromkeys((*_ROUTINGS, *(str(row["distribution"]) for row in found)))
    measured = {row["distribution"] for row in found}
    routing = next(each for each in routings if each in measured)
    return curve_of(
        (float(row["num_tokens"]), float(row["latency"]) * MS)
        for row in found
        if row["distribution"] == routing
    )


def _fused_mib(device: str, devices: int) -> float:
    """By vLLM's defaults; 0: nothing is fused."""
    name = device.removeprefix("G")
    return next(
        (sizes.get(devices, 0.0) for start, sizes in _FUSED_MIB.items() if name.startswith(start)),
        0.0,
    )


def _all_reduce_curve(versions: Versions, part: _Part) -> Curve:
    """Seconds over the 16-bit numbers of each device, in a CUDA graph where both were measured."""
    found = _first(
        versions,
        lambda row: int(row["num_gpus"]) == part.devices,
        f"all-reduce between {part.devices} devices",
    )
    graphs = [row for row in found if str(row.get("backend", "")).endswith("graph")]
    return curve_of((float(r["message_size"]), float(r["latency"]) * MS) for r in graphs or found)
