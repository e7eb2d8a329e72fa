"""A scheduler's length estimates, and what it learns from answers."""

import json

import pytest

from foretell.length import says_more
from foretell.model import LengthEstimate
from foretell.openai.parsing import ApiRequest, parse
from foretell.openai.surface import ENDPOINTS
from foretell.services.scheduler.placing.lengths import FastLengths, open_model


def request(prompt: str | list[int] = "Why is the sky blue?", **fields: object) -> ApiRequest:
    body = {"model": "m", "prompt": prompt, "max_tokens": 4000, **fields}
    return parse(ENDPOINTS["/v1/completions"], json.dumps(body).encode())


@pytest.fixture
def lengths() -> FastLengths:
    return FastLengths(open_model("shipped"))


def test_the_best_source_answers(lengths: FastLengths) -> None:
    assert lengths.estimate("a", request(), 9).source == "small_model"
    assert lengths.estimate("b", request([1, 2, 3]), 3).source == "prior"
    hint = lengths.estimate("c", request(vllm_xargs={"foretell_output_tokens": 30}), 9)
    assert (hint.source, hint.expected_tokens) == ("hint", 30.0)
    certain = lengths.estimate("d", request(ignore_eos=True), 9)
    assert (certain.source, certain.expected_tokens) == ("hint", 4000.0)


def test_a_chat_that_nothing_ends_goes_on_to_the_engines_limit(lengths: FastLengths) -> None:
    asked = {"model": "m", "messages": [{"role": "user", "content": "Why?"}], "ignore_eos": True}

    def estimate(max_model_len: int | None, **fields: object) -> LengthEstimate:
        parsed = parse(ENDPOINTS["/v1/chat/completions"], json.dumps({**asked, **fields}).encode())
        return lengths.estimate("a", parsed, 9, max_model_len)

    assert (estimate(2048).source, estimate(2048).expected_tokens) == ("hint", 2039.0)
    assert estimate(None).source == estimate(2048, stop="x").source == "small_model"


def test_bounds_hold(lengths: FastLengths) -> None:
    for prompt in ("Why?", [1, 2, 3]):
        found = lengths.estimate("a", request(prompt, min_tokens=90, max_tokens=100), 9)
        assert 90 <= found.expected_tokens <= 100
        assert all(90 <= tokens <= 100 for _, tokens in found.quantiles)


def test_it_learns_each_kind_apart(lengths: FastLengths) -> None:
    plain, tools = request(), request(stop=["x"])
    before = lengths.estimate("before", plain, 9).expected_tokens
    for number in range(200):
        for kind, tokens in ((plain, 700), (tools, 20)):
            key = f"{kind.kind} {number}"
            lengths.estimate(key, kind, 9)
            lengths.observe(key, kind, 9, tokens, censored=False)
    after = lengths.estimate("after", plain, 9).expected_tokens
    assert after > 400 > before
    assert lengths.estimate("stop", tools, 9).expected_tokens < 60
    assert lengths.estimate("ids", request([1]), 1).source == "history"


def test_a_model_that_fails_leaves_it_to_history(
    lengths: FastLengths, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lengths._model, "infer", None)
    assert lengths.estimate("a", request(), 9).source == "prior"
    assert "the length model failed" in caplog.text
    lengths.observe("a", request(), 9, 20, censored=False)


@pytest.mark.parametrize(
    ("later", "news"), [(100, False), (190, False), (52, False), (210, True), (48, True)]
)
def test_only_what_leaves_the_middle_half_is_news(later: float, news: bool) -> None:
    former = LengthEstimate(100.0, ((0.1, 10.0), (0.25, 50.0), (0.5, 90.0), (0.75, 200.0)))
    assert says_more(LengthEstimate(later), former) is news


def test_beside_one_that_claims_to_be_exact_everything_is_news() -> None:
    assert says_more(LengthEstimate(101.0), LengthEstimate(100.0))
    assert not says_more(LengthEstimate(100.0), LengthEstimate(100.0))
