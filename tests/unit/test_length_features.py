"""Features of a conversation that need no understanding of it."""

from math import isfinite, log1p

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.length import earlier
from foretell.length.conversation import Conversation, EarlierTurn
from foretell.length.features import NAMES, features

texts = st.text(max_size=60)


def seen(prompt: str, *exchanges: tuple[str, str]) -> dict[str, float]:
    """Features by name."""
    found = tuple(EarlierTurn(asked, answer, len(answer)) for asked, answer in exchanges)
    conversation = Conversation(
        prompt, len(prompt), 100, earlier=found, exchanges=len(found), max_tokens=64
    )
    return dict(zip(NAMES, features(conversation), strict=True))


@given(texts, st.lists(st.tuples(texts, texts), max_size=4))
def test_whatever_is_said_there_is_a_number_for_each_name(
    prompt: str, exchanges: list[tuple[str, str]]
) -> None:
    found = seen(prompt, *exchanges)
    assert len(found) == len(NAMES)
    assert all(map(isfinite, found.values()))


def test_names_are_told_once() -> None:
    assert len(set(NAMES)) == len(NAMES)


def test_what_a_prompt_asks_for() -> None:
    found = seen("Write 3 tips, each of 50 words:\nplease")
    assert found["log_asked_words"] == pytest.approx(log1p(50))
    assert found["log_asked_items"] == pytest.approx(log1p(3))
    assert found["log_asked_characters"] == 0.0
    assert found["says write"] == found["says please"] == 1.0
    assert found["log_lines"] == pytest.approx(log1p(1))
    assert found["log_max_tokens"] == pytest.approx(log1p(64))
    assert seen("Please continue.")["go_on"] == 1.0
    assert seen("Please continue the story of the bees.")["go_on"] == 0.0


@pytest.mark.parametrize("text", ["A1b2 c", "A1b2 é", "ABC 123 日本"])
def test_shares_are_the_same_however_they_are_counted(text: str) -> None:
    found = seen(text)
    assert found["digits"] == pytest.approx(sum(map(str.isdigit, text)) / (len(text) + 1))
    assert found["capitals"] == pytest.approx(sum(map(str.isupper, text)) / (len(text) + 1))


def test_nothing_answered_yet_is_all_zeros() -> None:
    found = seen("hello")
    assert {found[name] for name in earlier.NAMES} == {0.0}


def test_the_answer_to_a_prompt_like_this_one_stands_out() -> None:
    exchanges = [
        ("Translate into French: good morning to all of you", "x" * 80),
        ("Write an essay on bees and what they do all day long", "y" * 4000),
    ]
    found = seen("Translate into French: good night to all of you", *exchanges)
    translation, essay = log1p(20), log1p(1000)
    assert found["log_answer_1"] == pytest.approx(essay)
    assert found["log_answer_2"] == pytest.approx(translation)
    assert found["log_answer_to_it"] == found["log_answer_to_that"] == pytest.approx(translation)
    assert found["most_similar"] > 0.5
    assert found["longest_same_beginning"] > 0.5
    assert found["log_answer_to_most_similar"] < (translation + essay) / 2
    assert found["mean_log_answer"] == pytest.approx((translation + essay) / 2)


def test_a_character_of_another_alphabet_is_more_of_a_token() -> None:
    ascii_only, chinese = (seen("more", ("hi", c * 100)) for c in ("x", "蜂"))
    assert chinese["log_answer_1"] - ascii_only["log_answer_1"] > 1.0


def test_the_form_of_the_latest_answer() -> None:
    found = seen("go on", ("list", "Sure:\n1. a\n2. b\n```py\nprint("), ("why", "I'm sorry."))
    assert found["answer_declines"] == found["answer_ends_sentence"] == 1.0
    assert found["answer_code"] == 0.0
    assert found["answers_code"] == 0.5
    unfinished = seen("go on", ("list", "Sure:\n1. a\n2. b\n```py\nprint("))
    assert unfinished["answer_open_code"] == unfinished["answer_agrees"] == 1.0
    assert unfinished["answer_log_numbered"] == pytest.approx(log1p(2))
