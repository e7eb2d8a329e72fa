"""Rows of aiconfigurator's tables, as the curves of what one device has of a layer."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from foretell.latency.importers.curves import MS, across_s, curve_of, curves_by
from foretell.latency.tables import curve_s
from foretell.model import Curve, ModelSpec
from foretell.model.batch import prefill_pairs

SIXTEEN_BIT = "bfloat16"
# How tokens choose experts, the likeliest first: some are chosen more often than others. What is
# not named here comes last.
_ROUTINGS = ("power_law_1.01", "power_law_1.2", "balanced")
_SPARE = 1.02  # on what parameters are counted to be, for norms and biases

Rows = Sequence[Mapping[str, Any]]
Versions = Iterable[Rows]
"""The rows of one table, of several versions of vLLM; the first that has what is needed is used."""


@dataclass(frozen=True, slots=True)
class Types:
    """The types of numbers, by the tables' names: those of the layers' weights, and of the KV
    cache. Head and embedding are 16-bit always, and beside experts of MXFP4 all else."""

    weights: str = SIXTEEN_BIT
    kv_cache: str = SIXTEEN_BIT


@dataclass(frozen=True, slots=True)
class Part:
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
    def of(cls, model: ModelSpec, devices: int) -> "Part":
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


@dataclass(frozen=True, slots=True)
class Heads:
    """Which rows of attention are wanted; they are of exactly these heads."""

    attention_heads: int
    kv_heads: int
    head_size: int
    kv_cache: str
    """Type of the KV cache, by the tables' name."""

    def rows(self, versions: Versions, window: int) -> Rows:
        """Those with this window, 0: of full attention, which older tables have only."""
        what = f"attention with {self.attention_heads} and {self.kv_heads} heads of "
        what += f"{self.head_size} and a KV cache of {self.kv_cache}"
        return _first(versions, lambda row: self._fit(row, window), what)

    def are_in(self, versions: Versions, window: int) -> bool:
        """Whether there are rows with this window."""
        return any(self._fit(row, window) for rows in versions for row in rows)

    def _fit(self, row: Mapping[str, Any], window: int) -> bool:
        return (
            int(row["num_heads"]) == self.attention_heads
            and int(row["num_key_value_heads"]) == self.kv_heads
            and int(row["head_dim"]) == self.head_size
            and int(row.get("window_size", 0)) == window
            and row["kv_cache_dtype"] == self.kv_cache
        )


@dataclass(frozen=True, slots=True)
class Attention:
    """The attention of the layers that see equally far, in one of the devices."""

    layers: int
    window: int
    """Tokens that they see; 0: all."""
    is_measured: bool
    """Whether the kernels were measured with the window; if not, a token takes what it takes with
    full attention where there is nothing beyond the window."""
    prefill: Curve
    """Seconds of a layer over the pairs of a prompt."""
    decode: Mapping[float, Curve]
    """Seconds of a layer over the context, by the number of sequences."""

    @classmethod
    def of(
        cls,
        context: Sequence[Rows],
        generation: Sequence[Rows],
        layers: int,
        window: int,
        heads: Heads,
    ) -> "Attention":
        """From `context_attention` and `generation_attention`; ValueError where they lack it."""
        is_measured = all(heads.are_in(table, window) for table in (context, generation))
        seen = window if is_measured else 0
        return cls(
            layers,
            window,
            is_measured,
            curve_of(
                (_pairs(int(row["isl"]), 0, seen), float(row["latency"]) * MS)
                for row in heads.rows(context, seen)
                if int(row["batch_size"]) == 1
            ),
            curves_by(
                (float(row["batch_size"]), float(row["step"]), float(row["latency"]) * MS)
                for row in heads.rows(generation, seen)
            ),
        )

    def prefill_s(self, chunk: int, computed: int) -> float:
        """Seconds of one layer for a chunk behind computed tokens."""
        return curve_s(self.prefill, _pairs(chunk, computed, self.window))

    def decode_s(self, seqs: int, context: int) -> float:
        """Seconds of one layer: linear in the number of sequences between the table's."""
        if not self.is_measured:
            context = self.seen(context + 1) - 1
        return across_s(self.decode, seqs, context)

    def seen(self, context: int) -> int:
        """How many tokens of a context a token sees."""
        return min(context, self.window) if self.window else context


def _pairs(chunk: int, computed: int, window: int) -> int:
    """Query-key pairs of a chunk behind computed tokens, of which none is beyond the window."""
    outside = 0  # what the tokens behind a full window do not see
    if window:
        past = max(chunk + computed - window, 0)
        before = max(computed - window, 0)
        outside = (past * (past + 1) - before * (before + 1)) // 2
    return prefill_pairs(chunk, computed) - outside


def _first(versions: Versions, wanted: Callable[[Mapping[str, Any]], bool], what: str) -> Rows:
    """The wanted rows of the first version that has any; ValueError where none has `what`."""
    for rows in versions:
        found = [row for row in rows if wanted(row)]
        if found:
            return found
    raise ValueError(f"the tables have no {what}")


def gemm_curves(versions: Versions, kind: str, least_k: int) -> dict[int, dict[float, Curve]]:
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


def expert_curve(versions: Versions, model: ModelSpec, cut: tuple[int, int], types: Types) -> Curve:
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


def all_reduce_curve(versions: Versions, part: Part) -> Curve:
    """Seconds over the 16-bit numbers of each device, in a CUDA graph where both were measured."""
    found = _first(
        versions,
        lambda row: int(row["num_gpus"]) == part.devices,
        f"all-reduce between {part.devices} devices",
    )
    graphs = [row for row in found if str(row.get("backend", "")).endswith("graph")]
    return curve_of((float(r["message_size"]), float(r["latency"]) * MS) for r in graphs or found)
