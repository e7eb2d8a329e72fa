"""Emulated answers are as long as the shipped length model predicts."""

import statistics

import pytest

from foretell.length.bins import quantiles
from foretell.length.conversation import Conversation
from foretell.length.small import SmallModel, Weights, shipped
from foretell.services.backend.emulator.lengths import EmulatedLengths
from foretell.services.backend.emulator.protocol import ChatRequest, CompletionRequest
from foretell.services.backend.emulator.text import text_key, tokenize

LENGTHS = EmulatedLengths()
SHORT = "Is {} a prime number? Answer yes or no."
LONG = "Write a detailed essay of 1500 words about the history of {}, with many examples."


def drawn(text: str, key: bytes = b"") -> int:
    return LENGTHS.draw(tokenize(text), text, key)


@pytest.mark.parametrize("form", [SHORT, LONG])
def test_lengths_are_spread_as_the_model_foretells(form: str) -> None:
    model = SmallModel(Weights.read(shipped()))
    texts = [form.format(number) for number in range(400)]
    read = [Conversation(text, len(text), len(tokenize(text))) for text in texts]
    shares, _ = model.read(read, [""] * len(read))
    middles = quantiles(shares, (0.5,))[:, 0]
    below = statistics.fmean(
        drawn(text) <= middle for text, middle in zip(texts, middles, strict=True)
    )
    assert below == pytest.approx(0.5, abs=0.1)  # four standard errors


def test_what_asks_for_more_gets_more() -> None:
    short, long = (
        statistics.median(drawn(form.format(number)) for number in range(200))
        for form in (SHORT, LONG)
    )
    assert long > 3 * short


def test_a_chat_is_asked_by_its_last_message() -> None:
    messages = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": LONG},
    ]
    assert ChatRequest.model_validate({"messages": messages}).asked(0) == LONG


def test_prompts_of_token_ids_have_no_text() -> None:
    asked = [CompletionRequest(prompt=prompt).asked(0) for prompt in ([1, 2], [[3]], "a", ["b"])]
    assert asked == ["", "", "a", "b"]
    lengths = [LENGTHS.draw(["7", str(number)], "") for number in range(20_000)]
    # The standard error of the mean is under 1.1% here (sigma is 1.07: std is 1.46 times the mean).
    assert statistics.fmean(lengths) == pytest.approx(180, rel=0.05)
    assert min(lengths) >= 2


def test_keys_change_the_length() -> None:
    keys = [text_key(seed, choice) for seed in (None, 0, 1) for choice in (0, 1)]
    assert len({drawn(LONG, key) for key in keys}) == 6
