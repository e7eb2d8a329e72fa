"""Models without weights: published shapes that vLLM fills with random numbers.

An engine with `--load-format dummy` computes what one with the real weights does, as fast; only its
words have no sense. The vocabulary keeps its published size, so that the head and the sampler cost
what they would; ids beyond the small tokenizer's decode to nothing. Shapes are those of the
models' published `config.json`.
"""

import json
from pathlib import Path
from typing import Any

from foretell.tools.tiny_model import save_tokenizer

_COMMON = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "head_dim": 128,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "torch_dtype": "bfloat16",
    "use_cache": True,
}
_QWEN3 = _COMMON | {
    "architectures": ["Qwen3ForCausalLM"],
    "max_position_embeddings": 40960,
    "model_type": "qwen3",
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "sliding_window": None,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
_LLAMA = _COMMON | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": _QWEN3
    | {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "tie_word_embeddings": True,
    },
    "qwen3-1.7b": _QWEN3
    | {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "tie_word_embeddings": True,
    },
    "qwen3-8b": _QWEN3
    | {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_attention_heads": 32,
        "num_hidden_layers": 36,
        "tie_word_embeddings": False,
    },
    "llama-3.1-8b": _LLAMA
    | {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 131072,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "rope_scaling": {
            "factor": 8.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "vocab_size": 128256,
    },
    # For machines without a GPU: two engines of it share two cores.
    "tiny": _LLAMA
    | {
        "head_dim": 64,
        "hidden_size": 256,
        "intermediate_size": 768,
        "max_position_embeddings": 4096,
        "num_attention_heads": 4,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "rope_theta": 10000.0,
        "torch_dtype": "float32",
        "vocab_size": 4096,
    },
}


def write_dummy(name: str, folder: Path) -> Path:
    """Write configuration and tokenizer of `name` below `folder`; returns the model's folder."""
    model = folder / name
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text(json.dumps(SHAPES[name], indent=1))
    special = {"bos_token_id": 0, "eos_token_id": 1}
    (model / "generation_config.json").write_text(json.dumps(special))
    save_tokenizer(model)
    return model


def weight_bytes(model: Path) -> int:
    """Bytes of the weights of the model in a folder; 0 where they cannot be told."""
    stored = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    if stored:
        return stored
    try:
        return _dense_bytes(json.loads((model / "config.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _dense_bytes(config: dict[str, Any]) -> int:
    """Bytes of a dense decoder with a gated MLP; KeyError where the shape says something else."""
    if any("expert" in name for name in config):
        return 0
    width, layers = config["hidden_size"], config["num_hidden_layers"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head = config.get("head_dim") or width // heads
    attention = 2 * width * heads * head + 2 * width * kv_heads * head
    layer = attention + 3 * width * config["intermediate_size"]
    embeddings = 1 if config.get("tie_word_embeddings") else 2
    numbers: int = layers * layer + embeddings * config["vocab_size"] * width
    kind = config.get("torch_dtype") or config.get("dtype")
    return numbers * (4 if kind == "float32" else 2)
