"""What an emulated engine says."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.backend.emulator.text import (
    WORDS,
    Continuation,
    answer_start,
    output_length,
    text_key,
    tokenize,
)

KEYS = st.sampled_from([b"", text_key(7, 0), text_key(None, 1)])


def say(tokens: list[str], count: int, key: bytes = b"") -> list[str]:
    text = Continuation(tokens, key)
    return [text.next_word() for _ in range(count)]


def test_text_is_the_same_in_every_process_and_release() -> None:
    # Written down: an engine of another version in the same cluster must continue this.
    assert say(tokenize("hello there"), 4) == ["free", "fill", "give", "fresh"]


def test_there_is_one_word_for_every_byte() -> None:
    assert len(set(WORDS)) == 256
    assert all(tokenize(word) == [word] for word in WORDS)


def test_tokens_are_words_and_marks() -> None:
    assert tokenize("It's 10 o'clock,\n no?") == [
        "It",
        "'",
        "s",
        "10",
        "o",
        "'",
        "clock",
        ",",
        "no",
        "?",
    ]
    assert tokenize("") == []
    assert tokenize(" \n") == [" \n"]  # something, so not an empty prompt


@given(st.text(max_size=80), st.integers(1, 40), st.integers(0, 40), KEYS)
def test_a_begun_answer_is_continued_to_the_same_length(
    prompt: str, count: int, begun: int, key: bytes
) -> None:
    tokens = tokenize("Say: " + prompt + " ?")
    words = say(tokens, count, key)
    begun = min(begun, count)
    said = tokenize("Say: " + prompt + " ?" + "".join(f" {word}" for word in words[:begun]))
    assert say(said, count - begun, key) == words[begun:]
    assert answer_start(said, key) == len(tokens)
    whole = output_length(tokens, 180.0, key)
    assert output_length(said, 180.0, key) == max(1, whole - begun)


def test_keys_change_the_text_and_the_length() -> None:
    keys = [text_key(seed, choice) for seed in (None, 0, 1) for choice in (0, 1)]
    assert len({tuple(say(["a"], 20, key)) for key in keys}) == 6
    assert len({output_length(["a"], 1e6, key) for key in keys}) == 6


@pytest.mark.parametrize("mean", [40.0, 180.0])
def test_lengths_have_the_mean_that_was_asked_for(mean: float) -> None:
    lengths = [output_length(["prompt", str(i)], mean) for i in range(20_000)]
    # The standard error of the mean is under 1.1% here (sigma 1.07: std is 1.46 of the mean).
    assert statistics.fmean(lengths) == pytest.approx(mean, rel=0.05)
    assert min(lengths) >= 2
