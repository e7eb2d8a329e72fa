"""Importers on tables small enough to check by hand."""

from itertools import product

import pytest

from foretell.latency.devices import device_spec, model_spec
from foretell.latency.importers import (
    Link,
    LlmServingSimSource,
    VidurSource,
    fit_linear,
    tabulate,
)
from foretell.latency.importers.linear_fit import relative_fit
from foretell.latency.importers.llmservingsim import CHUNKS, DECODES, KV
from foretell.latency.importers.source import curve_of
from foretell.model import BatchShape, GpuProfile, ModelSpec

DENSE = ModelSpec("dense", 1e9, 10, 1000, 8, 2, 128, mlp_width=4000, vocabulary=32000)
MOE = ModelSpec(
    "moe", 1e9, 10, 1000, 8, 2, 128, experts=8, experts_per_token=2, active_parameters=3e8
)
Rows = list[dict[str, str]]


def dense_rows() -> Rows:
    """1 us a token in each of four layers; the once-only ones 100 us."""
    names = {"qkv_proj": 1, "layernorm": 1, "embedding": 100, "final_layernorm": 100}
    return [
        {"layer": name, "tokens": str(n), "time_us": str(us if us == 100 else us * n)}
        for name, us in names.items()
        for n in (1, 2048)
    ]


def sequence_rows() -> Rows:
    return [
        {"layer": name, "sequences": str(n), "time_us": str(50 + n)}
        for name in ("lm_head", "sampler")
        for n in (1, 256)
    ]


def attention_rows() -> Rows:
    """A chunk's token costs 1 us, a computed one 0.1 us, a decode 2 us."""
    points = [
        *((c, kv, 0, 0) for c, kv in product(CHUNKS, (0, *KV))),
        *((0, 0, n, kv) for n, kv in product((*DECODES, 256), KV)),
        *product(CHUNKS, (0, *KV), DECODES, KV),
    ]
    names = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
    return [
        {**dict(zip(names, map(str, p), strict=True)), "time_us": str(p[0] + p[1] / 10 + 2 * p[2])}
        for p in points
    ]


def test_llmservingsim_by_hand() -> None:
    source = LlmServingSimSource(DENSE, dense_rows(), sequence_rows(), attention_rows())
    # Ten layers of one projection and two norms, 1 us a token each, and the two once-only layers.
    assert source.tokens_s(100) == pytest.approx((10 * 3 * 100 + 200) * 1e-6)
    assert source.tokens_s(4096) == pytest.approx((10 * 3 * 4096 + 2 * 200) * 1e-6)
    assert source.sequences_s(16) == pytest.approx(2 * 66e-6)
    assert source.prefill_s(100, 200) == pytest.approx(10 * 120e-6)
    assert source.decode_s(24, 300) == pytest.approx(10 * 48e-6)
    assert source.mixed_s(100, 200, 24, 300) == pytest.approx(10 * 168e-6)
    assert source.ranks_s(100) is None


def test_llmservingsim_adds_the_all_reduces_of_tensor_parallelism() -> None:
    tables = (dense_rows(), sequence_rows(), attention_rows())
    alone = LlmServingSimSource(DENSE, *tables)
    link = Link(1e9, 10e-6)
    both = LlmServingSimSource(DENSE, *tables, link=link, tensor_parallel=2)
    # Two in each of ten layers; two bytes of 1,000 hidden values of 50 tokens over 1 GB/s.
    assert both.tokens_s(50) - alone.tokens_s(50) == pytest.approx(20 * (10e-6 + 100e-6))
    assert link.all_reduce_s(1e9, 4) == pytest.approx(1.5 + 10e-6)
    assert link.all_gather_s(1e9, 4) == pytest.approx(3.0 + 10e-6)
    with pytest.raises(ValueError, match="link"):
        LlmServingSimSource(DENSE, *tables, tensor_parallel=2)


def test_llmservingsim_shares_experts_between_ranks() -> None:
    # A token costs 1 us, an active expert 1,000 us.
    moe = [
        {"tokens": str(n), "activated_experts": str(e), "time_us": str(n + 1000 * e)}
        for n, e in product((1, 64, 2048), (2, 4, 8))
    ]
    tables = (dense_rows(), sequence_rows(), attention_rows())
    alone = LlmServingSimSource(MOE, *tables, moe=moe)
    dense = LlmServingSimSource(DENSE, *tables)
    assert alone.ranks_s(64) is None
    # With so many tokens every expert is active, on its own or split between two.
    assert alone.tokens_s(64) - dense.tokens_s(64) == pytest.approx(10 * 8064e-6, rel=1e-4)
    pair = LlmServingSimSource(MOE, *tables, moe=moe, link=Link(1e9, 10e-6), data_parallel=2)
    assert pair.tokens_s(64) == dense.tokens_s(64)
    moved = 2 * (10e-6 + 64 * 2000 / 1e9)
    assert pair.ranks_s(64) == pytest.approx(10 * (4064e-6 + moved), rel=1e-4)
    # One token on each of two ranks: each expert is missed with probability (3/4)^2.
    few = 4 * (1 - (3 / 4) ** 2) * 1000e-6
    one = pair.ranks_s(1)
    assert one is not None
    assert one / 10 - 2 * (10e-6 + 2e-6) == pytest.approx(max(few, 2000e-6) + 1e-6)
    with pytest.raises(ValueError, match="experts"):
        LlmServingSimSource(MOE, *tables)
    with pytest.raises(ValueError, match="experts"):
        LlmServingSimSource(MOE, *tables, moe=moe, link=Link(1e9, 0.0), tensor_parallel=2)


def vidur_rows() -> tuple[Rows, Rows]:
    names = (
        *("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj", "emb", "add"),
        *("input_layernorm", "attn_rope", "post_attention_layernorm", "mlp_act"),
    )
    sizes = {"n_embd": "4096", "n_expanded_embd": "11008", "n_head": "32", "n_kv_head": "32"}
    mlp = [
        {
            **{f"time_stats.{name}.median": str(1.0 + n / 1000) for name in names},
            **sizes,
            "num_tokens": str(n),
            "num_tensor_parallel_workers": "1",
        }
        for n in (1, 500, 1000)
    ]
    mlp[1]["time_stats.mlp_up_proj.median"] = "0.001"  # lost: no GPU is so fast
    mlp.append({**mlp[0], "num_tensor_parallel_workers": "2", "time_stats.emb.median": "99"})
    heads = {"n_q_head": "32", "n_kv_head": "16", "num_tensor_parallel_workers": "2"}
    decode = [
        {
            **heads,
            "is_prefill": "False",
            "batch_size": str(b),
            "prefill_chunk_size": "0",
            "kv_cache_size": str(kv),
            "time_stats.attn_decode.median": str(b * kv / 1e5),
            "time_stats.attn_prefill.median": "",
        }
        for b, kv in product((1, 8, 64, 512), (100, 1000))
    ]
    prefill = [
        {
            **heads,
            "is_prefill": "True",
            "batch_size": "1",
            "prefill_chunk_size": str(q),
            "kv_cache_size": str(kv),
            "time_stats.attn_decode.median": "",
            "time_stats.attn_prefill.median": str(0.01 + q * kv / 1e6 + q * q / 2e6),
        }
        for q, kv in product((64, 256, 1024), (0, 512))
    ]
    return mlp, [*decode, *prefill]


def test_vidur_by_hand() -> None:
    mlp, attention = vidur_rows()
    model = model_spec("Llama-2-7b-hf")  # 32 query and 32 KV heads; measured with 16 and 8
    source = VidurSource(model, device_spec("A30"), mlp, attention)
    # Ten operators in a layer, one of them twice, and the embedding; the lost row is interpolated.
    assert source.tokens_s(500) == pytest.approx((32 * 10 + 1) * 1.5e-3, rel=1e-3)
    assert source.decode_s(16, 500) == pytest.approx(32 * 16 * 4 * 500 / 1e5 * 1e-3)
    expected = 0.01 + 2 * (256 * 300 / 1e6 + 256 * 256 / 2e6)
    assert source.prefill_s(256, 300) == pytest.approx(32 * expected * 1e-3)
    assert source.sequences_s(1) == pytest.approx(2 * 32000 * 4096 / (0.8 * 933e9))
    assert source.mixed_s(256, 0, 1, 100) is None
    assert source.ranks_s(8) is None


def test_vidur_refuses_what_it_cannot_scale() -> None:
    mlp, attention = vidur_rows()
    model, device = model_spec("Llama-2-7b-hf"), device_spec("A30")
    with pytest.raises(ValueError, match="mixes"):
        VidurSource(model, device, mlp, [*attention, {**attention[0], "n_q_head": "64"}])
    with pytest.raises(ValueError, match="parallelism 1"):
        VidurSource(model, device, mlp[-1:], attention)
    with pytest.raises(ValueError, match="LM head"):
        VidurSource(MOE, device, mlp, attention)


def test_a_source_becomes_a_profile() -> None:
    source = LlmServingSimSource(DENSE, dense_rows(), sequence_rows(), attention_rows())
    tables = tabulate(source, max_num_seqs=64)
    assert tables.mixed is not None
    assert tables.ranks is None
    assert tables.graph_sizes[-1] == 128
    profile = GpuProfile("d/m", (), 0.0, "made up", total_blocks=5000, tables=tables)
    coefficients, residual = fit_linear(profile)
    # The tables are linear but for padding and clamped edges, and so is the fit.
    assert residual < 0.05
    assert coefficients[1] == pytest.approx(40e-6, rel=0.1)
    assert min(coefficients) >= 0.0


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
