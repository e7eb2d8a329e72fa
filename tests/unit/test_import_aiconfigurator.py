"""AIConfigurator's tables, small enough to check by hand."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from foretell.latency.devices import device_spec
from foretell.latency.importers.aiconfigurator import (
    MEMORY_LATENCY_S,
    MEMORY_SHARE,
    AiConfiguratorSource,
    AiConfiguratorTables,
)
from foretell.latency.importers.aiconfigurator_rows import Types
from foretell.latency.importers.curves import curve_of
from foretell.latency.importers.linear_fit import relative_fit
from foretell.model import BatchShape, ModelSpec
from tests.unit.aiconfigurator_tables import Row, all_reduce_rows, attention_rows

DENSE = ModelSpec("dense", 1e9, 10, 1000, 8, 2, 128, mlp_width=4000, vocabulary=32000)
# Attention, four of eight experts, the router, embedding and head: no layer used by all tokens.
_BODY = 10 * (2 * 1000 * 128 * 10 + 3 * 1000 * 500 * 4 + 8000)
MOE = replace(
    DENSE,
    name="moe",
    experts=8,
    experts_per_token=4,
    active_parameters=float(_BODY + 2 * 32000 * 1000),
    mlp_width=500,
)
DEVICE = device_spec("A30")


def gemm_rows() -> list[Row]:
    """A product of m, n and k takes m n k picoseconds, and half as long with 8 bits."""
    return [
        {"gemm_dtype": kind, "m": m, "n": n, "k": k, "latency": m * n * k / 1e9 * factor}
        for kind, factor in (("bfloat16", 1.0), ("fp8", 0.5))
        for m, n, k in product(
            (1, 64, 2048), (256, 1000, 2000, 8000, 16000), (256, 512, 1000, 4000)
        )
    ]


def expert_rows(width: int = 500) -> list[Row]:
    """A token takes a microsecond; half of it where experts are chosen evenly, and three quarters
    where whole experts are spread over two devices."""
    return [
        {
            "hidden_size": 1000,
            "inter_size": width,
            "topk": 4,
            "num_experts": 8,
            "moe_dtype": "bfloat16",
            "moe_tp_size": cut,
            "moe_ep_size": spread,
            "num_tokens": tokens,
            "distribution": routing,
            "latency": tokens / 1e3 * share * (0.75 if spread > 1 else 1 / cut),
        }
        for (cut, spread), tokens in product(((1, 1), (2, 1), (1, 2)), (1, 2048))
        for routing, share in (("balanced", 0.5), ("power_law_1.01", 1.0))
    ]


def tables(**others: Any) -> AiConfiguratorTables:
    context, generation = attention_rows()
    return AiConfiguratorTables(
        **{
            name: [rows]
            for name, rows in {
                "gemm": gemm_rows(),
                "context_attention": context,
                "generation_attention": generation,
                "all_reduce": all_reduce_rows(),
                "moe": expert_rows(),
                **others,
            }.items()
        }
    )


def test_a_device_by_hand() -> None:
    source = AiConfiguratorSource(DENSE, DEVICE, tables())
    # The products of qkv, output, gate and up, and down; element-wise work is small beside them.
    products = 1536 * 1000 + 1000 * 1024 + 8000 * 1000 + 1000 * 4000
    assert source.tokens_s(64) == pytest.approx(10 * 64 * products / 1e12, rel=0.05)
    assert source.sequences_s(64) == pytest.approx(64 * 32000 * 1000 / 1e12)
    # A chunk of 64 after 64 cached tokens has as many pairs as a whole prompt of 110.
    assert source.prefill_s(128, 0) == pytest.approx(10 * 128 * 129 / 2e9)
    assert source.prefill_s(64, 64) == pytest.approx(10 * (64 * 64 + 64 * 65 / 2) / 1e9, rel=1e-6)
    assert source.decode_s(32, 512) == pytest.approx(10 * 32 * 512 / 1e6)


@pytest.mark.parametrize("devices", [2, 4])
def test_several_devices_have_a_part_each_and_bring_the_results_together(devices: int) -> None:
    """With two KV heads, each of four devices has a copy of one of them."""
    source = AiConfiguratorSource(DENSE, DEVICE, tables(), tensor_parallel=devices)
    qkv, attention = {2: (768, 512), 4: (512, 256)}[devices]
    products = qkv * 1000 + 1000 * attention + (8000 * 1000 + 1000 * 4000) / devices
    # Twice in each of ten layers and once after the embedding, 64,000 numbers.
    together_s = 21 * 64e-6
    expected_s = 10 * 64 * products / 1e12 + together_s
    assert source.tokens_s(64) == pytest.approx(expected_s, rel=0.07)
    free = [{**row, "latency": 0.0} for row in all_reduce_rows()]
    without = AiConfiguratorSource(DENSE, DEVICE, tables(all_reduce=free), tensor_parallel=devices)
    assert source.tokens_s(64) - without.tokens_s(64) == pytest.approx(together_s)
    assert source.sequences_s(64) == pytest.approx(64 * 32000 / devices * 1000 / 1e12)


@pytest.mark.parametrize("devices", [1, 2])
def test_norms_across_heads_bring_the_sums_of_all_devices_together(devices: int) -> None:
    across = replace(DENSE, norms_across_heads=True)
    within_s, across_s = (
        AiConfiguratorSource(model, DEVICE, tables(), tensor_parallel=devices).tokens_s(500)
        for model in (DENSE, across)
    )
    # Two sums of 32 bits a token equal 2,000 numbers of 16 bits; 640 queries and keys are read.
    read_s = 500 * 640 * 2 / (MEMORY_SHARE * DEVICE.memory_bandwidth_bytes_per_s)
    wanted_s = 10 * (2e-6 + read_s + MEMORY_LATENCY_S) if devices > 1 else 0.0
    assert across_s - within_s == pytest.approx(wanted_s, abs=1e-12)


FUSED_ROWS: list[Row] = [
    {"num_gpus": 2, "message_size": size, "latency": size / 1e7} for size in (1000, 1000_000)
]
"""The fused kernel of vLLM takes a tenth of the time of its all-reduce."""


@pytest.mark.parametrize(
    ("device", "fused_mib", "is_fused"),
    [
        ("H100-SXM", None, True),
        ("GB200", None, True),
        ("B300", None, True),
        ("L40S", None, False),
        ("L40S", 1.0, True),
        ("B200", 0.0, False),
        ("B200", 0.12, False),
        ("B200", 0.13, True),
    ],
)
def test_what_is_fused_takes_the_fused_kernel_and_no_norm(
    device: str, fused_mib: float | None, is_fused: bool
) -> None:
    """128,000 bytes are a little more than 0.12 MiB."""

    def tokens_s(**others: Any) -> float:
        source = AiConfiguratorSource(
            DENSE,
            replace(DEVICE, name=device),
            tables(**others),
            tensor_parallel=2,
            fused_mib=fused_mib,
        )
        return source.tokens_s(64)

    # Saved twice in each of ten layers: the sum's time, a launch, and half of the norm's traffic.
    moved_s = 4 * 64_000 / (MEMORY_SHARE * DEVICE.memory_bandwidth_bytes_per_s)
    spared_s = 20 * (0.9 * 64e-6 + MEMORY_LATENCY_S + moved_s) if is_fused else 0.0
    assert tokens_s() - tokens_s(fused_all_reduce=FUSED_ROWS) == pytest.approx(spared_s, abs=1e-12)


def test_types_of_weights_and_of_the_cache() -> None:
    context, generation = attention_rows("fp8", factor=0.5)
    both = tables(context_attention=context, generation_attention=generation)
    source = AiConfiguratorSource(DENSE, DEVICE, both, types=Types("fp8", "fp8"))
    usual = AiConfiguratorSource(DENSE, DEVICE, tables())
    assert source.tokens_s(2048) == pytest.approx(usual.tokens_s(2048) / 2, rel=0.05)
    assert source.sequences_s(8) == usual.sequences_s(8)
    assert source.prefill_s(512, 0) == pytest.approx(usual.prefill_s(512, 0) / 2)
    assert source.decode_s(256, 8192) == pytest.approx(usual.decode_s(256, 8192) / 2)
    with pytest.raises(ValueError, match="no GEMM of int4"):
        AiConfiguratorSource(DENSE, DEVICE, both, types=Types("int4"))


def test_what_the_host_took_is_no_time_of_an_8_bit_product() -> None:
    """As in tables of 8 bits in blocks, measured without CUDA graphs."""
    rows = [
        row
        if row["gemm_dtype"] == "bfloat16"
        else {**row, "latency": max(0.2, float(str(row["latency"])))}
        for row in gemm_rows()
    ]
    source = AiConfiguratorSource(DENSE, DEVICE, tables(gemm=rows), types=Types("fp8"))
    usual = AiConfiguratorSource(DENSE, DEVICE, tables())
    typed = AiConfiguratorSource(DENSE, DEVICE, tables(), types=Types("fp8"))
    assert source.tokens_s(1) == usual.tokens_s(1)
    assert typed.tokens_s(2048) <= source.tokens_s(2048) < 0.75 * usual.tokens_s(2048)


@pytest.mark.parametrize(
    ("devices", "whole", "share"), [(1, False, 1), (2, False, 0.5), (2, True, 0.75)]
)
def test_experts_take_what_their_table_says(devices: int, whole: bool, share: float) -> None:
    free = [{**row, "latency": 0.0} for row in expert_rows()]
    taken, without = (
        AiConfiguratorSource(
            MOE, DEVICE, found, tensor_parallel=devices, expert_parallel=whole
        ).tokens_s(512)
        for found in (tables(), tables(moe=free))
    )
    assert taken - without == pytest.approx(10 * 512e-6 * share)


def test_the_first_version_that_has_what_is_needed_is_used() -> None:
    slower = [{**row, "latency": 2.0 * row["latency"]} for row in gemm_rows()]  # type: ignore[operator]
    of_fp8 = [row for row in slower if row["gemm_dtype"] == "fp8"]
    both = replace(tables(), gemm=[of_fp8, gemm_rows()], moe=[[], expert_rows()])
    source = AiConfiguratorSource(DENSE, DEVICE, both)
    usual = AiConfiguratorSource(DENSE, DEVICE, tables())
    assert source.tokens_s(64) == usual.tokens_s(64)
    assert AiConfiguratorSource(MOE, DEVICE, both).tokens_s(64) > 0.0
    newest = AiConfiguratorSource(DENSE, DEVICE, both, types=Types("fp8"))
    older = AiConfiguratorSource(DENSE, DEVICE, tables(), types=Types("fp8"))
    assert newest.tokens_s(2048) == pytest.approx(2.0 * older.tokens_s(2048), rel=0.05)


def test_experts_that_are_chosen_in_a_way_nobody_named() -> None:
    other = [{**row, "distribution": "uniform"} for row in expert_rows()[::2]]
    source = AiConfiguratorSource(MOE, DEVICE, tables(moe=other))
    even = [row for row in expert_rows() if row["distribution"] == "balanced"]
    assert source.tokens_s(512) == AiConfiguratorSource(MOE, DEVICE, tables(moe=even)).tokens_s(512)


def test_a_product_wider_than_the_table_is_made_of_parts() -> None:
    wide = replace(DENSE, vocabulary=48_000)
    source = AiConfiguratorSource(wide, DEVICE, tables())
    assert source.sequences_s(64) == pytest.approx(64 * 48_000 * 1000 / 1e12)


def test_attention_never_beats_the_memory() -> None:
    context, generation = attention_rows()
    free = [{**row, "latency": 1e-9} for row in generation]
    both = tables(context_attention=context, generation_attention=free)
    held = 1000 * DENSE.kv_bytes_per_token
    alone = AiConfiguratorSource(DENSE, DEVICE, both)
    assert alone.decode_s(8, 999) == pytest.approx(8 * held / (0.9 * 933e9))
    # Each of four devices has one of the two KV heads, and so half of the cache.
    four = AiConfiguratorSource(DENSE, DEVICE, both, tensor_parallel=4)
    assert four.decode_s(8, 999) == pytest.approx(8 * held / 2 / (0.9 * 933e9))


def test_layers_with_a_window_have_tables_of_their_own() -> None:
    """Three of ten layers see 100 tokens; there decoding takes as long for any longer context."""
    context, generation = attention_rows()
    seen = {n: min(n, 100) * (min(n, 100) + 1) / 2 + max(n - 100, 0) * 100 for n in (16, 128, 2048)}
    context += [
        {**row, "window_size": 100, "latency": 5 * row["batch_size"] * seen[row["isl"]] / 1e6}
        for row in context
    ]
    generation += [
        {**row, "window_size": 100, "latency": row["batch_size"] * 100 / 1e3}
        for row in generation
        if "window_size" not in row and row["num_heads"] == 8
    ]
    both = tables(context_attention=context, generation_attention=generation)
    model = replace(DENSE, windowed_layers=3, window_tokens=100)
    source = AiConfiguratorSource(model, DEVICE, both)
    assert source.decode_s(32, 512) == pytest.approx(7 * 32 * 512 / 1e6 + 3 * 32 * 100 / 1e6)
    # After 500 tokens each of 64 sees 100; in a prompt of 64 each sees all before it.
    full_s = 7 * (64 * 500 + 64 * 65 / 2) / 1e9
    assert source.prefill_s(64, 500) == pytest.approx(full_s + 3 * 5 * 64 * 100 / 1e9, rel=1e-6)
    all_s = (7 + 3 * 5) * 64 * 65 / 2 / 1e9
    assert source.prefill_s(64, 0) == pytest.approx(all_s, rel=1e-6)


def test_a_window_that_was_not_measured_is_as_if_nothing_were_beyond() -> None:
    source = AiConfiguratorSource(
        replace(DENSE, windowed_layers=10, window_tokens=100), DEVICE, tables()
    )
    assert source.decode_s(32, 50) == pytest.approx(10 * 32 * 50 / 1e6)
    assert source.decode_s(32, 512) == pytest.approx(10 * 32 * 99 / 1e6)
    assert source.prefill_s(64, 500) == pytest.approx(10 * 64 * 100 / 1e9, rel=1e-6)


LATENT = replace(DENSE, kv_latent_size=576)
SHARED = replace(MOE, active_parameters=1.1 * MOE.active_parameters)


@pytest.mark.parametrize(
    ("match", "model", "devices", "others"),
    [
        ("no GEMM of bfloat16", DENSE, 1, {"gemm": []}),
        ("no attention with 8 and 2 heads of 128", DENSE, 1, {"generation_attention": []}),
        ("known sizes", LATENT, 1, {}),
        ("known sizes", replace(DENSE, mlp_width=0), 1, {}),
        ("3 equal parts", DENSE, 3, {}),
        ("no all-reduce between 2", DENSE, 2, {"all_reduce": []}),
        ("no experts of bfloat16 as moe", MOE, 1, {"moe": expert_rows(width=600)}),
        ("that every token uses", SHARED, 1, {}),
    ],
)
def test_what_the_tables_do_not_hold_is_refused(
    match: str, model: ModelSpec, devices: int, others: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=match):
        AiConfiguratorSource(model, DEVICE, tables(**others), tensor_parallel=devices)


def test_the_fit_is_relative_and_not_negative() -> None:
    shapes = [BatchShape(decode_seqs=n, decode_pairs=0) for n in (1, 2, 300)]
    x = [(1.0, float(s.decode_seqs)) for s in shapes]
    assert relative_fit(x, [3.0, 5.0, 601.0]) == pytest.approx((1.0, 2.0))
    assert relative_fit(x, [3.0, 2.0, 1e-3])[1] == 0.0


def test_curves_take_the_median_and_need_a_measurement() -> None:
    points = [(1.0, 5.0), (1.0, 1.0), (1.0, 2.0), (0.0, float("nan"))]
    assert curve_of(points).seconds == (2.0,)
    with pytest.raises(ValueError, match="without measurements"):
        curve_of([(0.0, float("nan"))])
