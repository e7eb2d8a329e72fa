"""The lines of a batch's input and output."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.batch import lines, records
from foretell.batch.lines import Checker, LineError
from foretell.batch.records import TokenUsage

CHAT = "/v1/chat/completions"


def line(custom_id: str = "a", **changes: Any) -> bytes:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    request = {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body, **changes}
    return json.dumps({k: v for k, v in request.items() if v is not None}).encode() + b"\n"


def problems(*given: bytes, endpoint: str = CHAT, most: int = 9999) -> list[LineError]:
    checker = Checker(endpoint, {"m", "m2"}, most)
    for number, raw in enumerate(given, 1):
        checker.check(number, raw)
    checker.end()
    return checker.errors


def test_good_lines() -> None:
    checker = Checker(CHAT, {"m"})
    found = [checker.check(number, raw) for number, raw in enumerate((line("a"), b"\n", line("b")))]
    assert [each.custom_id if each else None for each in found] == ["a", None, "b"]
    assert (checker.requests, checker.model, checker.errors) == (2, "m", [])
    custom_id, body = lines.request_of(line("a"))
    assert custom_id == "a"
    assert json.loads(body) == json.loads(line("a"))["body"]


@pytest.mark.parametrize(
    ("raw", "code", "param"),
    [
        (b"{not json", "invalid_json_line", None),
        (b"\xff\xfe", "invalid_json_line", None),
        (b"[1]", "invalid_json_line", None),
        (b"[" * 100_000, "invalid_json_line", None),
        (line(custom_id=None), "missing_required_parameter", "custom_id"),
        (line("x" * 513), "invalid_value", "custom_id"),
        (line("null\0"), "invalid_value", "custom_id"),
        (line("half \ud83d"), "invalid_value", "custom_id"),
        (line("first"), "duplicate_custom_id", "custom_id"),
        (line(method="GET"), "invalid_method", "method"),
        (line(url="/v1/completions"), "url_mismatch", "url"),
        (line(body=[]), "missing_required_parameter", "body"),
        (line(body={}), "missing_required_parameter", "body.model"),
        (line(body={"model": "m", "stream": True}), "invalid_value", "body.stream"),
        (line(body={"model": "other"}), "model_not_found", "body.model"),
        (line(body={"model": "m2"}), "model_mismatch", "body.model"),
    ],
)
def test_an_error_names_its_line_and_field(raw: bytes, code: str, param: str | None) -> None:
    (error,) = problems(line("first"), b"", raw)
    assert (error.code, error.param, error.line) == (code, param, 3)
    assert error.message


def test_errors_of_the_whole_file() -> None:
    assert [error.code for error in problems(b"\n", b" ")] == ["empty_file"]
    assert problems(*[b"\n"] * 1_000_000)[0].code == "too_many_tasks", "nobody reads 200 MB of them"
    (error,) = problems(line("a"), line("b"), line("c"), most=2)
    assert (error.code, error.line) == ("too_many_tasks", 3)
    texts = line("a", url="/v1/embeddings", body={"model": "m", "input": ["x", "y", "z"]})
    ids = line("a", url="/v1/embeddings", body={"model": "m", "input": [1, 2, 3]})
    assert [e.code for e in problems(texts, endpoint="/v1/embeddings", most=2)] == [
        "too_many_tasks"
    ]
    assert not problems(ids, endpoint="/v1/embeddings", most=2)


def test_no_more_errors_are_kept_than_are_told() -> None:
    assert len(problems(*[b"x"] * 500)) == lines.MOST_ERRORS


@given(st.binary(max_size=60))
def test_any_bytes_are_a_request_or_one_error(raw: bytes) -> None:
    checker = Checker(CHAT, None)
    found = checker.check(1, raw)
    assert found is None
    assert len(checker.errors) == (1 if raw.strip() else 0)


def test_an_answer_stands_in_the_output_as_it_came() -> None:
    body = (
        b'{ "x":  1.0, "usage": {"prompt_tokens": 7, "completion_tokens": 20, "total_tokens": 27,'
    )
    body += b' "prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": null} }'
    record = records.answered("batch_req_1", 'say "hi"', 200, "r-1", body)
    assert record.ok
    assert body in record.line
    assert record.line.endswith(b"\n")
    assert json.loads(record.line) == {
        "id": "batch_req_1",
        "custom_id": 'say "hi"',
        "response": {"status_code": 200, "request_id": "r-1", "body": json.loads(body)},
        "error": None,
    }
    assert record.usage == TokenUsage(7, 4, 20, 0)


def test_the_usage_of_a_response() -> None:
    usage = {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 1},
        "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 5},
    }
    record = records.answered("1", "a", 200, "r", json.dumps({"usage": usage}).encode())
    assert record.usage == TokenUsage(7, 1, 9, 5)


@pytest.mark.parametrize(
    "body", [b"<html>\n", b'{"a":NaN}', b'{"a":\n1}', b"\xff", b'"\\ud800"', b""]
)
def test_whatever_an_engine_says_the_line_stays_one_line_of_json(body: bytes) -> None:
    record = records.answered("1", "a", 500, "r", body)
    assert not record.ok
    assert record.line.count(b"\n") == 1
    assert json.loads(record.line)["response"]["status_code"] == 500


def test_a_request_without_an_answer() -> None:
    record = records.expired("1", "a")
    found = json.loads(record.line)
    assert (found["response"], found["error"]["code"], record.ok) == (None, "batch_expired", False)


def test_how_many_requests_a_file_has_is_foreseen_from_its_beginning() -> None:
    data = b"".join(line(f"{number:04}") + b"\n" for number in range(1000))
    assert lines.first_lines(data[:2000], len(data)) == (1000, "m")
    few = line("a") + b"\n\n" + line("b")
    assert lines.first_lines(few, len(few)) == (2, "m")
    for useless in (b"", b"{", b"[]\n", b'{"body": {}}\n', b"{" * 1000):
        assert lines.first_lines(useless, 5000) == (0, "")
