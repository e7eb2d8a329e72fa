"""The sizes of a model from its `config.json` in the format of Hugging Face's transformers.

Parameters are counted from the shapes of the matrices. Biases are left out; they are some
hundredths of a percent.
"""

from collections.abc import Mapping
from typing import Any

from foretell.model import ModelSpec

Config = Mapping[str, Any]

# Model types whose MLP has two matrices, instead of the three of a gated MLP.
_PLAIN_MLP = {"bloom", "falcon", "gpt2", "gpt_bigcode", "gpt_neox", "mpt", "nemotron", "opt", "phi"}
_PLAIN_MLP |= {"starcoder2"}
_STATE_SPACE = (
    "ssm_cfg",
    "ssm_state_size",
    "mamba_d_state",
    "linear_num_value_heads",
    "attn_layer_period",
)
_NORMS_ACROSS_HEADS = {"minimax_m2"}
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_16_BIT = 2.0
_MXFP4 = "mxfp4"
# One layer in so many has full attention, if a configuration of this type does not say which.
_FULL_ATTENTION_EVERY = {"cohere2": 4, "gemma2": 2, "gemma3_text": 6, "gpt_oss": 2}
MXFP4_BYTES = 4.25 / 8
"""Bytes of a number in MXFP4: 32 numbers of four bits share an exponent of eight bits."""


def model_from_config(config: Config, name: str) -> ModelSpec:
    """The sizes of the model `name`; ValueError if the configuration does not determine them."""
    text = {**config, **config.get("text_config", {})}
    unknown = [key for key in _STATE_SPACE if text.get(key)]
    if unknown or text.get("is_encoder_decoder"):
        raise ValueError(f"{name} is no decoder of attention layers alone: {unknown or 'encoder'}")
    try:
        return _spec(text, name)
    except (KeyError, TypeError) as error:
        raise ValueError(f"the configuration of {name} lacks {error}") from error


def _spec(text: Config, name: str) -> ModelSpec:
    hidden, layers = int(text["hidden_size"]), int(text["num_hidden_layers"])
    heads = int(text["num_attention_heads"])
    kv_heads = int(text.get("num_key_value_heads") or heads)
    head_size = int(text.get("head_dim") or hidden // heads)
    vocabulary = int(text["vocab_size"])
    experts = next((int(text[key]) for key in _EXPERTS if text.get(key)), 0)
    per_token = int(text.get("num_experts_per_tok") or text.get("experts_per_token") or 0)
    width = int(text["intermediate_size"])
    expert_width = int(text.get("moe_intermediate_size") or width)
    latent = int(text.get("kv_lora_rank") or 0)
    if latent:
        attention, head_size = _latent_attention(text, hidden, heads, latent)
        latent += int(text["qk_rope_head_dim"])
    else:
        attention = 2 * hidden * head_size * (heads + kv_heads)
    matrices = 2 if text.get("model_type") in _PLAIN_MLP else 3
    sparse = _sparse_layers(text, layers) if experts else 0
    expert = matrices * hidden * expert_width
    shared = matrices * hidden * _shared_width(text, expert_width)
    body = (
        layers * (attention + 2 * hidden)
        + (layers - sparse) * matrices * hidden * width
        + sparse * (experts * (expert + hidden) + shared)
    )
    ends = vocabulary * hidden * (1 if text.get("tie_word_embeddings") else 2) + hidden
    parameters = float(body + ends)
    quantization = text.get("quantization_config") or {}
    weight_bytes, kv_bytes = _bytes(quantization)
    of_experts = is_of_experts(quantization.get("quant_method", ""))
    small = sparse * experts * expert if of_experts else body
    idle = sparse * (experts - per_token) * expert
    window = int(text.get("sliding_window") or 0) if text.get("use_sliding_window", True) else 0
    return ModelSpec(
        name,
        parameters,
        layers,
        hidden,
        heads,
        kv_heads,
        head_size,
        bytes_per_parameter=(small * weight_bytes + (parameters - small) * _16_BIT) / parameters,
        experts=experts,
        experts_per_token=per_token,
        active_parameters=parameters - idle if experts else 0.0,
        mlp_width=expert_width if experts else width,
        vocabulary=vocabulary,
        kv_latent_size=latent,
        kv_bytes_per_number=kv_bytes,
        windowed_layers=_windowed_layers(text, layers) if window else 0,
        window_tokens=window,
        norms_across_heads=text.get("model_type") in _NORMS_ACROSS_HEADS,
    )


def _latent_attention(text: Config, hidden: int, heads: int, latent: int) -> tuple[int, int]:
    """Parameters of a layer of multi-head latent attention, and the mean size of its heads."""
    rope, nope = int(text["qk_rope_head_dim"]), int(text["qk_nope_head_dim"])
    value, rank = int(text["v_head_dim"]), int(text.get("q_lora_rank") or 0)
    queries = heads * (nope + rope)
    parameters = (
        (hidden * rank + rank * queries if rank else hidden * queries)
        + hidden * (latent + rope)
        + latent * heads * (nope + value)
        + heads * value * hidden
    )
    return parameters, (nope + rope + value) // 2


def _shared_width(text: Config, expert_width: int) -> int:
    """Inner width of the experts that every token uses."""
    shared = int(text.get("n_shared_experts") or 0) * expert_width
    return shared or int(text.get("shared_expert_intermediate_size") or 0)


def _sparse_layers(text: Config, layers: int) -> int:
    """The number of layers with experts."""
    dense = set(text.get("mlp_only_layers") or ())
    first, every = (
        int(text.get("first_k_dense_replace") or 0),
        int(text.get("decoder_sparse_step") or 1),
    )
    return sum(
        layer >= first and layer not in dense and (layer + 1) % every == 0
        for layer in range(layers)
    )


def is_of_experts(weights: str) -> bool:
    """Whether only experts have weights of this type: its name ends with "mxfp4"."""
    return weights.endswith(_MXFP4)


def _windowed_layers(text: Config, layers: int) -> int:
    """The number of layers with the sliding window; all if the configuration does not say which."""
    if kinds := text.get("layer_types"):
        return list(kinds).count("sliding_attention")
    kind, other = text.get("model_type"), text.get("sliding_window_pattern")
    every = int(other or _FULL_ATTENTION_EVERY.get(str(kind), 0))
    return layers - layers // every if every else layers


def _bytes(quantization: Config) -> tuple[float, float]:
    """Bytes of a layer's weight, and of a number in the KV cache.

    ValueError for a quantisation without a known number of bits.
    """
    method = quantization.get("quant_method", "")
    scheme = quantization.get("kv_cache_scheme") or {}
    kv_bytes = int(scheme.get("num_bits", 16)) / 8
    groups = list((quantization.get("config_groups") or {}).values())
    bits = quantization.get("bits") or quantization.get("weight_bits")
    if bits is None and groups:
        bits = (groups[0].get("weights") or {}).get("num_bits", 16)
    if not quantization:
        return _16_BIT, kv_bytes
    if bits is not None:
        return int(bits) / 8, kv_bytes
    if method == _MXFP4:
        return MXFP4_BYTES, kv_bytes
    if method in {"fp8", "fbgemm_fp8", "modelopt"} or quantization.get("load_in_8bit"):
        eight = "FP4" not in str(quantization.get("quant_algo", ""))
        return (1.0 if eight else 0.5), kv_bytes
    if quantization.get("load_in_4bit"):
        return 0.5, kv_bytes
    raise ValueError(f"weights quantised by {method!r} have no known size")
