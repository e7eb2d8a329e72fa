"""Prompt tokens estimated from characters."""

import random

import pytest

from foretell.length import ConversationTokens, PromptTokenEstimator


def test_an_unknown_model_gets_the_prior() -> None:
    estimator = PromptTokenEstimator()
    assert estimator.estimate("llama", 400, 0) == 100
    assert estimator.estimate("llama", 400, 2) == 108
    assert estimator.estimate("llama", 0, 0) == 1


def test_plain_prompts_teach_the_ratio() -> None:
    estimator = PromptTokenEstimator()
    for characters in (200, 1000, 4000) * 10:
        estimator.observe("llama", characters, 0, characters // 5)
    assert estimator.estimate("llama", 10_000, 0) == pytest.approx(2000, rel=0.01)
    assert estimator.estimate("qwen", 10_000, 0) == 2500, "models learn apart"


def test_chats_teach_the_template_beside_the_ratio() -> None:
    estimator, draws = PromptTokenEstimator(), random.Random(3)
    for _ in range(300):
        characters, messages = draws.randint(10, 3000), draws.randint(1, 8)
        noise = draws.gauss(0.0, 0.1 * characters**0.5)
        tokens = 0.3 * characters + 12 * messages + noise
        estimator.observe("llama", characters, messages, round(tokens))
    assert estimator.estimate("llama", 20, 1) == pytest.approx(18, abs=2)
    assert estimator.estimate("llama", 3000, 8) == pytest.approx(996, rel=0.02)


def test_the_ratio_follows_a_change_of_language() -> None:
    estimator = PromptTokenEstimator()
    for _ in range(200):
        estimator.observe("llama", 1000, 0, 250)
    for _ in range(200):
        estimator.observe("llama", 1000, 0, 900)
    assert 800 < estimator.estimate("llama", 1000, 0) <= 900


def test_identical_chats_are_no_trap() -> None:
    """Characters and messages that never vary cannot be told apart; their sum must still fit."""
    estimator = PromptTokenEstimator()
    for _ in range(200):
        estimator.observe("llama", 500, 1, 150)
    assert estimator.estimate("llama", 500, 1) == pytest.approx(150, abs=2)


@pytest.mark.parametrize("tokens", [1, 10_000])
def test_no_part_is_ever_negative(tokens: int) -> None:
    estimator = PromptTokenEstimator()
    for messages in (1, 8) * 20:
        estimator.observe("llama", 1000, messages, tokens // messages + 1)
    assert estimator.estimate("llama", 1, 0) >= 1
    assert estimator.estimate("llama", 100_000, 0) >= estimator.estimate("llama", 1, 0)
    assert estimator.estimate("llama", 1000, 50) >= estimator.estimate("llama", 1000, 0)


def test_a_prompt_without_text_teaches_nothing() -> None:
    estimator = PromptTokenEstimator()
    estimator.observe("llama", 0, 0, 500)
    estimator.observe("llama", 500, 0, 0)
    assert estimator.estimate("llama", 400, 0) == 100


def test_the_model_unheard_of_for_longest_is_forgotten() -> None:
    estimator = PromptTokenEstimator(max_models=2)
    for model in ("a", "b", "a", "c"):
        for _ in range(50):
            estimator.observe(model, 1000, 0, 500)
    assert estimator.estimate("b", 1000, 0) == 250
    assert estimator.estimate("a", 1000, 0) == pytest.approx(500, abs=2)
    assert estimator.estimate("c", 1000, 0) == pytest.approx(500, abs=2)


def test_of_spoken_prompts_the_latest_are_known() -> None:
    conversation_tokens = ConversationTokens(most=2)
    for name, tokens in ((1, 10), (2, 20), (1, 11), (3, 30)):
        conversation_tokens.note(name, tokens)
    assert [conversation_tokens.of("m", name) for name in range(4)] == [0, 11, 0, 30]


def test_what_models_forget_to_repeat_tells_nothing() -> None:
    """Thoughts count as generated, and are left out of the next prompt."""
    conversation_tokens = ConversationTokens()
    conversation_tokens.note(1, 1000)
    conversation_tokens.check("m", 1, 950)
    conversation_tokens.check("m", 2, 5)
    conversation_tokens.check("thinks", 1, 300)
    assert (conversation_tokens.of("m", 1), conversation_tokens.of("thinks", 1)) == (1000, 0)
    for number in range(64):
        conversation_tokens.check(f"thinks-{number}", 1, 300)
    assert conversation_tokens.of("thinks", 1) == 1000
