"""Models without weights: published shapes that vLLM fills with random numbers.

An engine with `--load-format dummy` does the same work, as fast, as with the real weights; only its
text makes no sense. The vocabulary keeps its published size, so that the head and the sampler cost
the same; ids beyond the small tokenizer's decode to nothing. Shapes are those of the models'
published `config.json`.
"""

import json
from pathlib import Path
from typing import Any

import yaml

from foretell.tools.tiny_model import save_tokenizer

SHAPES: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
)["shapes"]


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
    """Bytes of the weights of the model in a folder; 0 if unknown."""
    stored = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    if stored:
        return stored
    try:
        return _dense_bytes(json.loads((model / "config.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _dense_bytes(config: dict[str, Any]) -> int:
    """Bytes of a dense decoder with a gated MLP; KeyError if the shape lacks a size of one."""
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
