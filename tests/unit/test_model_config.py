"""Sizes read from models' configurations, compared with what their makers state."""

from typing import Any

import pytest

from foretell.latency.devices import MODELS
from foretell.latency.model_config import model_from_config

Config = dict[str, Any]
LLAMA_8B: Config = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
QWEN3_MOE: Config = {
    "model_type": "qwen3_moe",
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151936,
}
MIXTRAL = LLAMA_8B | {"num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000}
DEEPSEEK_V3: Config = {
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "quantization_config": {"quant_method": "fp8"},
    "v_head_dim": 128,
    "vocab_size": 129280,
}
GEMMA_2_9B: Config = {
    "head_dim": 256,
    "hidden_size": 3584,
    "intermediate_size": 14336,
    "num_attention_heads": 16,
    "num_hidden_layers": 42,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
    "vocab_size": 256000,
}


@pytest.mark.parametrize(
    ("config", "parameters", "active", "kv_bytes"),
    [
        (LLAMA_8B, 8.030e9, 0.0, 131_072),
        (QWEN3_MOE, 30.532e9, 3.353e9, 98_304),
        (MIXTRAL, 46.7e9, 12.88e9, 131_072),
        (DEEPSEEK_V3, 671.0e9, 37.55e9, 61 * 576 * 2),
        (GEMMA_2_9B, 9.24e9, 0.0, 344_064),
    ],
)
def test_parameters_are_those_that_the_makers_tell(
    config: Config, parameters: float, active: float, kv_bytes: float
) -> None:
    found = model_from_config(config, "a")
    assert found.parameters == pytest.approx(parameters, rel=2e-3)
    assert found.active_parameters == pytest.approx(active, rel=5e-3)
    assert found.kv_bytes_per_token == kv_bytes


def test_a_known_model_is_what_its_configuration_says() -> None:
    for name, config in (("Llama-3.1-8B", LLAMA_8B), ("Qwen3-30B-A3B", QWEN3_MOE)):
        found, known = model_from_config(config, name), MODELS[name]
        for field in ("layers", "hidden_size", "kv_heads", "head_size", "experts", "mlp_width"):
            assert getattr(found, field) == getattr(known, field)


GPT_OSS: Config = {
    "model_type": "gpt_oss",
    "head_dim": 64,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "num_local_experts": 128,
    "quantization_config": {"quant_method": "mxfp4"},
    "sliding_window": 128,
    "vocab_size": 201088,
}


def test_experts_in_mxfp4_leave_all_else_at_16_bits() -> None:
    found, known = model_from_config(GPT_OSS, "a"), MODELS["gpt-oss-120b"]
    assert found.parameters == pytest.approx(known.parameters, rel=2e-3)
    assert found.active_parameters == pytest.approx(known.active_parameters, rel=2e-3)
    assert found.bytes_per_parameter == pytest.approx(known.bytes_per_parameter, rel=2e-3)


_KINDS = ["sliding_attention"] * 5 + ["full_attention"]


@pytest.mark.parametrize(
    ("change", "windowed", "groups"),
    [
        ({}, 0, (1, 0)),
        ({"sliding_window": 4096}, 32, (1, 1)),
        ({"sliding_window": 4096, "use_sliding_window": False}, 0, (1, 0)),
        ({"sliding_window": 4096, "model_type": "gemma2"}, 16, (2, 1)),
        ({"sliding_window": 4096, "sliding_window_pattern": 4}, 24, (4, 3)),
        # Of 26 layers four have full attention: the other 22 make six groups of four.
        (
            {"sliding_window": 512, "num_hidden_layers": 26, "layer_types": (_KINDS * 5)[:26]},
            22,
            (7, 6),
        ),
        # Five and six layers make a group each.
        (
            {"sliding_window": 512, "num_hidden_layers": 11, "layer_types": (_KINDS[4:] * 6)[:11]},
            6,
            (2, 1),
        ),
    ],
)
def test_layers_with_a_window_make_groups_of_their_own(
    change: Config, windowed: int, groups: tuple[int, int]
) -> None:
    found = model_from_config(LLAMA_8B | change, "a")
    assert (found.windowed_layers, found.window_tokens > 0) == (windowed, windowed > 0)
    assert (found.kv_cache_groups, found.local_kv_cache_groups) == groups


@pytest.mark.parametrize(("kind", "expected"), [("minimax_m2", True), ("llama", False)])
def test_only_some_models_norm_across_heads(kind: str, expected: bool) -> None:
    assert model_from_config(LLAMA_8B | {"model_type": kind}, "a").norms_across_heads is expected


def test_a_nested_configuration_is_that_of_the_text() -> None:
    nested = {"model_type": "vision", "hidden_size": 1, "text_config": LLAMA_8B}
    assert model_from_config(nested, "a") == model_from_config(LLAMA_8B, "a")


@pytest.mark.parametrize(
    ("quantization", "weight", "kv"),
    [
        ({"quant_method": "fp8"}, 1.0, 2.0),
        ({"quant_method": "awq", "bits": 4}, 0.5, 2.0),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 0.5, 2.0),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 0.5, 2.0),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8}}},
                "kv_cache_scheme": {"num_bits": 8},
            },
            1.0,
            1.0,
        ),
    ],
)
def test_what_is_quantised_takes_less(quantization: Config, weight: float, kv: float) -> None:
    found = model_from_config(LLAMA_8B | {"quantization_config": quantization}, "a")
    ends = 2 * 128256 * 4096  # embedding and head are not quantised
    expected = (weight * (found.parameters - ends) + 2.0 * ends) / found.parameters
    assert found.bytes_per_parameter == pytest.approx(expected, rel=1e-4)
    assert found.kv_bytes_per_token == 131_072 * kv / 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"mamba_d_state": 128}, "attention layers alone"),
        ({"is_encoder_decoder": True}, "encoder"),
        ({"hidden_size": None}, "configuration of a"),
        ({"quantization_config": {"quant_method": "new"}}, "'new'"),
    ],
)
def test_what_cannot_be_counted_is_refused(change: Config, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        model_from_config(LLAMA_8B | change, "a")
