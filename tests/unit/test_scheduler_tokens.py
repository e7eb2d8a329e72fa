"""Prompt tokens, counted with a tokenizer if there is one."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from foretell.length.prompt import PRIOR_TOKENS_PER_MESSAGE
from foretell.openai.parsing import parse
from foretell.openai.surface import ENDPOINTS
from foretell.services.scheduler.placing.tokens import COUNTED_CHARS, PromptCounter

COMPLETIONS, CHAT = ENDPOINTS["/v1/completions"], ENDPOINTS["/v1/chat/completions"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer with one token per word."""
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def count(counter: PromptCounter, text: str) -> int:
    return counter.count(parse(COMPLETIONS, json.dumps({"model": "m", "prompt": text}).encode()))


def test_words_are_counted_with_the_file_or_its_folder(folder: Path) -> None:
    for path in (folder, folder / "tokenizer.json"):
        assert count(PromptCounter(str(path)), "three little words") == 3


def test_a_chat_counts_its_messages_too(folder: Path) -> None:
    messages = [{"role": "user", "content": "two words"}] * 3
    request = parse(CHAT, json.dumps({"model": "m", "messages": messages}).encode())
    assert PromptCounter(str(folder)).count(request) == 6 + round(3 * PRIOR_TOKENS_PER_MESSAGE)


def test_a_long_text_is_counted_by_its_beginning(folder: Path) -> None:
    """The rest is taken to be similar: ten words at the end of a one-word text are not noticed."""
    head = "w " * (COUNTED_CHARS // 2)
    counter = PromptCounter(str(folder))
    assert count(counter, head * 3) == 3 * COUNTED_CHARS // 2
    assert count(counter, head + "w" * COUNTED_CHARS) == COUNTED_CHARS


def test_without_a_tokenizer_nothing_is_counted() -> None:
    assert count(PromptCounter(""), "three little words") == 0


def test_token_ids_need_no_tokenizer(folder: Path) -> None:
    request = parse(COMPLETIONS, json.dumps({"model": "m", "prompt": [1, 2]}).encode())
    assert PromptCounter(str(folder)).count(request) == 0


def test_a_missing_file_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="does not exist"):
        PromptCounter(str(tmp_path))
