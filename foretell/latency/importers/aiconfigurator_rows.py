"""Turns rows of aiconfigurator's tables into curves for one device's part of a layer."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from foretell.latency.importers.curves import MS, across_s, curve_of, curves_by
from foretell.latency.tables import curve_s
from foretell.model import Curve, ModelSpec
from foretell.model.batch import prefill_pairs

SIXTEEN_BIT = "bfloat16"
# Distributions of tokens over experts, the most realistic first. Others are used last.
_ROUTINGS = ("power_law_1.01", "power_law_1.2", "balanced")
_SPARE = 1.02  # tolerance of the count of parameters, for norms and biases

Rows = Sequence[Mapping[str, Any]]
Versions = Iterable[Rows]
"""The rows of one table for several versions of vLLM; the first with the needed rows is used."""


@dataclass(frozen=True, slots=True)
class Types:
    """Number types of the layers' weights and of the KV cache, by the tables' names. Head and
    embedding are always 16-bit; with experts in MXFP4, everything else is."""

    weights: str = SIXTEEN_BIT
    kv_cache: str = SIXTEEN_BIT


@dataclass(frozen=True, slots=True)
class Part:
    """The part of each layer that one of several devices has."""

    devices: int
    heads: int
    kv_heads: int
    attention_width: int
    """Its heads times the head size."""
    mlp_width: int
    """Inner width of its part of the MLP; with experts that of a whole expert, as in the table."""
    vocabulary: int

    @classmethod
    def of(cls, model: ModelSpec, devices: int) -> "Part":
        """The part of one of `devices` devices; ValueError if they cannot have equal parts.

        If there are more devices than KV heads, each has a copy of one KV head.
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
    """Selects the rows of attention with exactly these heads."""

    attention_heads: int
    kv_heads: int
    head_size: int
    kv_cache: str
    """Type of the KV cache, by the tables' name."""

    def rows(self, versions: Versions, window: int) -> Rows:
        """The rows with this window; 0: full attention. Older tables have no other."""
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
    """The attention of layers with the same window, on one of the devices."""

    layers: int
    window: int
    """Tokens of the window; 0: full attention."""
    is_measured: bool
    """Whether the kernels were measured with the window. If not, times are those of full attention
    with as many tokens or pairs as are within the window."""
    prefill: Curve
    """Seconds of a layer by the pairs of a prompt."""
    decode: Mapping[float, Curve]
    """Seconds of a layer by the context, for each number of sequences."""

    @classmethod
    def of(
        cls,
        context: Sequence[Rows],
        generation: Sequence[Rows],
        layers: int,
        window: int,
        heads: Heads,
    ) -> "Attention":
        """Read `context_attention` and `generation_attention`; ValueError if rows are missing."""
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
        """Seconds of one layer, linear in the number of sequences between the table's."""
        if not self.is_measured:
            context = self.seen(context + 1) - 1
        return across_s(self.decode, seqs, context)

    def seen(self, context: int) -> int:
        """The number of tokens of a context that a token attends to."""
        return min(context, self.window) if self.window else context


def _pairs(chunk: int, computed: int, window: int) -> int:
    """Query-key pairs within the window, of a chunk behind computed tokens."""
    outside = 0  # pairs beyond the window
    if window:
        past = max(chunk + computed - window, 0)
        before = max(computed - window, 0)
        outside = (past * (past + 1) - before * (before + 1)) // 2
    return prefill_pairs(chunk, computed) - outside


def _first(versions: Versions, wanted: Callable[[Mapping[str, Any]], bool], what: str) -> Rows:
    """The wanted rows of the first version that has any; ValueError if none has `what`."""
    for rows in versions:
        found = [row for row in rows if wanted(row)]
        if found:
            return found
    raise ValueError(f"the tables have no {what}")


def gemm_curves(versions: Versions, kind: str, least_k: int) -> dict[int, dict[float, Curve]]:
    """Curves of seconds over m, by k and then n, from the greatest k up to `least_k` on."""
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
    """Seconds of a layer's experts over the tokens. Each expert is cut into `cut[0]` parts, and the
    experts are spread over `cut[1]` devices."""
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
    """Seconds over the 16-bit numbers of a device; with CUDA graphs if that was measured."""
    found = _first(
        versions,
        lambda row: int(row["num_gpus"]) == part.devices,
        f"all-reduce between {part.devices} devices",
    )
    graphs = [row for row in found if str(row.get("backend", "")).endswith("graph")]
    return curve_of((float(r["message_size"]), float(r["latency"]) * MS) for r in graphs or found)
