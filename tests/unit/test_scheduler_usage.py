"""Reading token counts out of answers, whatever stands in them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.record.outcome import Result
from services.scheduler.relay.usage import read_stream_tail, read_usage

FIELDS = "usage", "choices", "prompt_tokens", "completion_tokens", "prompt_tokens_details"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner),
    max_leaves=10,
)


def test_counts_and_finish_reason_of_a_whole_answer() -> None:
    result = Result()
    body = {"usage": {"prompt_tokens": 3, "completion_tokens": 4}}
    read_usage(json.dumps({**body, "choices": [{"finish_reason": "stop"}]}).encode(), result)
    assert (result.prompt_tokens, result.output_tokens, result.truncated) == (3, 4, False)
    read_usage(json.dumps({**body, "choices": [{"finish_reason": "length"}]}).encode(), result)
    assert result.truncated


@pytest.mark.parametrize(
    ("details", "cached"), [(None, None), ({}, None), ({"cached_tokens": 0}, 0)]
)
def test_the_engine_may_say_what_was_cached(details: object, cached: int | None) -> None:
    result = Result()
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": details}
    read_usage(json.dumps({"usage": usage, "choices": []}).encode(), result)
    assert result.cached_tokens == cached


@given(JSON)
def test_nonsense_leaves_counts_that_can_be_sent_on(answer: object) -> None:
    result = Result()
    read_usage(json.dumps(answer).encode(), result)
    assert 0 <= result.output_tokens < 2**31
    assert 0 <= result.prompt_tokens < 2**31


@pytest.mark.parametrize("count", ["Infinity", "NaN", "-5", "1e400", '"x"', "[1]", str(2**40)])
def test_impossible_counts_are_no_counts(count: str) -> None:
    result = Result()
    read_usage(b'{"usage": {"completion_tokens": %s}}' % count.encode(), result)
    assert result.output_tokens == 0


def test_a_stream_tells_of_itself_in_its_last_events() -> None:
    result = Result(finished=True)
    read_stream_tail(
        b'r":"cut off"}\n\n'
        b'data: {"choices":[{"text":"x","finish_reason":"length"}]}\n\n'
        b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n'
        b"data: [DONE]\n\n",
        result,
    )
    assert (result.prompt_tokens, result.output_tokens) == (3, 4)
    assert result.truncated
    assert result.finished


def test_an_engine_that_reports_its_failure_has_not_finished() -> None:
    result = Result(finished=True)
    read_stream_tail(b'data: {"error":{"code":500}}\n\ndata: [DONE]\n\n', result)
    assert not result.finished
