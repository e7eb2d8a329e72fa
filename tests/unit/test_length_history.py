"""Which window answers, what it has forgotten, and the effect of limits."""

import math
import random

import pytest

from foretell.length import PRIOR_TOKENS, QUANTILE_LEVELS, LengthHistory
from foretell.length.history import prompt_bucket
from foretell.model import LengthEstimate


def observe(history: LengthHistory, model: str, prompt: int, output: int, times: int) -> None:
    for _ in range(times):
        history.observe(model, prompt, output)


def test_prompt_buckets_are_log2_spaced_and_finite() -> None:
    assert [prompt_bucket(n) for n in (0, 1, 2, 3, 4, 7, 8, 1023, 1024)] == [
        0, 1, 2, 2, 3, 3, 4, 10, 11,
    ]  # fmt: skip
    assert prompt_bucket(1 << 19) == prompt_bucket(1 << 40)


def test_an_empty_history_answers_with_the_prior() -> None:
    estimate = LengthHistory().estimate("llama", 100)
    assert estimate.source == "prior"
    assert estimate.expected_tokens == pytest.approx(PRIOR_TOKENS)
    assert tuple(level for level, _ in estimate.quantiles) == QUANTILE_LEVELS


def test_the_prior_knows_the_limit() -> None:
    estimate = LengthHistory(prior_tokens=200.0).estimate("llama", 100, max_tokens=100)
    assert estimate.expected_tokens == pytest.approx(200.0 * (1 - math.exp(-0.5)))
    assert max(tokens for _, tokens in estimate.quantiles) == 100.0


def test_the_narrowest_window_with_enough_observations_answers() -> None:
    history = LengthHistory(min_observations=4)
    observe(history, "llama", prompt=100, output=10, times=3)
    assert history.estimate("llama", 100).source == "prior"
    observe(history, "llama", prompt=5000, output=90, times=1)
    assert history.estimate("llama", 100).expected_tokens == pytest.approx(30.0), "whole model"
    observe(history, "llama", prompt=100, output=10, times=1)
    assert history.estimate("llama", 100).expected_tokens == pytest.approx(10.0), "bucket"
    assert history.estimate("llama", 5000).expected_tokens == pytest.approx(26.0), "whole model"
    assert history.estimate("qwen", 100).expected_tokens == pytest.approx(26.0), "all models"
    assert history.estimate("qwen", 100).source == "history"


def test_censored_answers_lengthen_the_estimate() -> None:
    history = LengthHistory(prior_tokens=256.0)
    for _ in range(10):
        history.observe("llama", 100, 100)
        history.observe("llama", 100, 300, censored=True)
    # S is 1/2 from 100 to 300, then follows an exponential of mean 256.
    estimate = history.estimate("llama", 100)
    assert estimate.expected_tokens == pytest.approx(100 + 0.5 * 200 + 0.5 * 256)
    assert dict(estimate.quantiles)[0.75] == pytest.approx(300 + 256 * math.log(2))
    assert history.estimate("llama", 100, max_tokens=200).expected_tokens == pytest.approx(150.0)


def test_requests_that_always_run_to_their_limit_are_expected_to() -> None:
    history = LengthHistory()
    for _ in range(50):
        history.observe("llama", 100, 128, censored=True)
    assert history.estimate("llama", 100, max_tokens=128).expected_tokens == pytest.approx(128.0)


def test_a_window_forgets_its_oldest_observations() -> None:
    history = LengthHistory(window=10)
    observe(history, "llama", 100, output=1000, times=50)
    observe(history, "llama", 100, output=10, times=9)
    assert history.estimate("llama", 100).expected_tokens == pytest.approx(109.0)
    observe(history, "llama", 100, output=10, times=1)
    assert history.estimate("llama", 100).expected_tokens == pytest.approx(10.0)


def test_the_model_unheard_of_for_longest_is_forgotten() -> None:
    history = LengthHistory(max_models=2, min_observations=1, window=4)
    for model, output in (("a", 10), ("b", 20), ("a", 10), ("c", 30)):
        history.observe(model, 100, output)
    assert history.estimate("a", 100).expected_tokens == pytest.approx(10.0)
    assert history.estimate("c", 100).expected_tokens == pytest.approx(30.0)
    assert history.estimate("b", 100).expected_tokens == pytest.approx(17.5), "all models"


def test_an_answer_without_a_token_teaches_nothing() -> None:
    history = LengthHistory(min_observations=1)
    history.observe("llama", 100, 0, censored=True)
    history.observe("llama", 100, 0)
    assert history.estimate("llama", 100).source == "prior"


def test_a_changed_history_changes_the_estimate_soon() -> None:
    history = LengthHistory(window=1000)
    observe(history, "llama", 100, output=10, times=1000)
    before = history.estimate("llama", 100)
    observe(history, "llama", 100, output=500, times=50)
    assert history.estimate("llama", 100) == before, "fitted anew for 5 % of news, not for less"
    observe(history, "llama", 100, output=500, times=1)
    expected = (949 * 10 + 51 * 500) / 1000
    assert history.estimate("llama", 100).expected_tokens == pytest.approx(expected)


def test_the_same_observations_give_the_same_estimates() -> None:
    def replay() -> list[LengthEstimate]:
        history, draws, answers = LengthHistory(window=64), random.Random(7), []
        for _ in range(500):
            model, prompt = draws.choice("ab"), draws.randint(1, 4000)
            history.observe(model, prompt, draws.randint(1, 900), draws.random() < 0.2)
            answers.append(history.estimate(model, prompt, draws.choice((0, 64))))
        return answers

    assert replay() == replay()


@pytest.mark.parametrize("wrong", [{"window": 0}, {"max_models": 0}, {"prior_tokens": 0.0}])
def test_limits_must_be_positive(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="positive"):
        LengthHistory(**wrong)


def test_min_tokens_bring_shorter_answers_up_to_it() -> None:
    history = LengthHistory()
    observe(history, "llama", prompt=100, output=10, times=5)
    observe(history, "llama", prompt=100, output=90, times=5)
    estimate = history.estimate("llama", 100, max_tokens=80, min_tokens=20)
    assert estimate.expected_tokens == pytest.approx((20 + 80) / 2)
    assert {tokens for _, tokens in estimate.quantiles} == {20.0, 80.0}


def test_a_kind_of_request_is_like_plain_ones_until_it_is_known() -> None:
    history = LengthHistory(min_observations=4)
    observe(history, "llama", prompt=100, output=300, times=8)
    assert history.estimate("llama", 100, kind="tools").expected_tokens == pytest.approx(300.0)
    for _ in range(4):
        history.observe("llama", 5000, 20, kind="tools")
    assert history.estimate("llama", 100, kind="tools").expected_tokens == pytest.approx(20.0)
    assert history.estimate("llama", 100, kind="stop").expected_tokens == pytest.approx(300.0)
    assert history.estimate("llama", 5000).expected_tokens == pytest.approx(300.0), "plain"
