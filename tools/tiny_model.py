"""Builds a tiny random Llama that real vLLM serves, without downloading weights.

    python -m foretell.tools.tiny_model DIR

Offline and deterministic: about 5M random parameters, and a BPE tokenizer trained on text composed
here. The model writes nonsense, but the engine is real. A complete DIR is left as it is. Needs
torch, transformers, tokenizers and typer: run it with the Python that has vLLM.
"""

import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Annotated

import typer

MAX_POSITIONS = 4096
_LAYERS, _WIDTH = 4, 256
_HEAD_SIZE = 64
_VOCABULARY = 4096
_SEED = 20_240_501
_BOS, _EOS, _PAD = "<s>", "</s>", "<pad>"
_CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ message['role'] + ': ' + message['content'] + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)


def build(folder: Path) -> bool:
    """Write the model to `folder`; false if a complete one is already there.

    The folder appears whole or not at all, so concurrent builders are safe.
    """
    if all((folder / name).is_file() for name in _FILES):
        return False
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    try:
        partial.mkdir()
        _save_model(partial, save_tokenizer(partial))
        for name in _FILES:  # some of them are readable by this user alone
            (partial / name).chmod(0o644)
        _move(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return True


def save_tokenizer(folder: Path) -> int:
    """Save the tokenizer; return its number of tokens, since a model must sample no other ids."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=[_BOS, _EOS, _PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _BOS,
        "eos_token": _EOS,
        "pad_token": _PAD,
        "model_max_length": MAX_POSITIONS,
        "clean_up_tokenization_spaces": False,
        # Every version of transformers finds it here.
        "chat_template": _CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
    return int(tokenizer.get_vocab_size())


def _save_model(folder: Path, vocabulary: int) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(_SEED)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=_WIDTH,
        intermediate_size=3 * _WIDTH,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_WIDTH // _HEAD_SIZE,
        num_key_value_heads=_WIDTH // _HEAD_SIZE // 2,
        max_position_embeddings=MAX_POSITIONS,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        tie_word_embeddings=False,
        dtype=torch.float32,
    )
    LlamaForCausalLM(config).save_pretrained(folder, safe_serialization=True)


def _corpus() -> list[str]:
    """Plain sentences, every combination of a few words, then invented words for the merges."""
    subjects = "the model|a server|one request|every engine|the scheduler|a user|our cluster"
    verbs = "answers|waits for|measures|predicts|finishes|explains|repeats|considers"
    objects = "a long question|the next token|its memory|two short stories|the whole batch|a list"
    endings = "today.|in a moment.|because it must.|as always!|before noon.|why not?"
    parts = [text.split("|") for text in (subjects, verbs, objects, endings)]
    sentences = [" ".join(words).capitalize() for words in itertools.product(*parts)]
    syllables = ["".join(pair) for pair in itertools.product("bdfgklmnprstvw", "aeiou")]
    words = [" " + "".join(pair) for pair in itertools.product(syllables, syllables)]
    return sentences + words


def _move(partial: Path, folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
    try:
        partial.rename(folder)
    except OSError:
        if folder.exists() and all((folder / name).is_file() for name in _FILES):
            return  # another builder was faster
        raise SystemExit(f"{folder} exists and is not a complete model; remove it") from None


def main(folder: Annotated[Path, typer.Argument(metavar="DIR")]) -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    built = build(folder)
    typer.echo(f"{folder}: {'built' if built else 'already complete'}")


if __name__ == "__main__":
    typer.run(main)
