"""The tiny model is complete, deterministic and not built again."""

from pathlib import Path

import pytest

from foretell.tools import tiny_model

pytestmark = pytest.mark.vllm


def test_two_builds_are_equal_and_a_third_is_none(tmp_path: Path) -> None:
    first, second = tmp_path / "a" / "model", tmp_path / "b"
    assert tiny_model.build(first)
    second.mkdir()
    assert tiny_model.build(second)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"], "nothing is left behind"
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes()
    stamp = (first / "config.json").stat().st_mtime_ns
    assert not tiny_model.build(first)
    assert (first / "config.json").stat().st_mtime_ns == stamp


def test_every_token_the_model_can_sample_decodes(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer  # noqa: PLC0415  (slow)

    tiny_model.build(tmp_path / "model")
    config = AutoConfig.from_pretrained(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert config.vocab_size == len(tokenizer)
    assert config.max_position_embeddings >= 2048
    assert tokenizer.eos_token_id == config.eos_token_id
    text = "The scheduler predicts the next token before noon."
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    chat = [{"role": "user", "content": "Hi"}]
    rendered = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert rendered == "<s>user: Hi\nassistant: "


def test_a_folder_with_something_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(SystemExit, match="not a complete model"):
        tiny_model.build(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]
