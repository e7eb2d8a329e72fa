"""The text that an emulated engine generates."""

from hypothesis import given
from hypothesis import strategies as st

from foretell.services.backend.emulator.text import (
    WORDS,
    Continuation,
    text_key,
    tokenize,
)

KEYS = st.sampled_from([b"", text_key(7, 0), text_key(None, 1)])


def say(tokens: list[str], count: int, key: bytes = b"") -> list[str]:
    text = Continuation(tokens, key)
    return [text.next_word() for _ in range(count)]


def test_text_is_the_same_in_every_process_and_release() -> None:
    # Fixed: an engine of another version in the same cluster must be able to continue this.
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
    assert tokenize(" \n") == [" \n"]  # not an empty prompt


@given(st.text(max_size=80), st.integers(1, 40), st.integers(0, 40), KEYS)
def test_a_begun_answer_is_continued(prompt: str, count: int, begun: int, key: bytes) -> None:
    tokens = tokenize("Say: " + prompt + " ?")
    words = say(tokens, count, key)
    begun = min(begun, count)
    said = tokenize("Say: " + prompt + " ?" + "".join(f" {word}" for word in words[:begun]))
    assert say(said, count - begun, key) == words[begun:]


def test_keys_change_the_text() -> None:
    keys = [text_key(seed, choice) for seed in (None, 0, 1) for choice in (0, 1)]
    assert len({tuple(say(["a"], 20, key)) for key in keys}) == 6
