"""Server-sent events of JSON in every valid form, and errors that engines report in them."""

import json
from dataclasses import dataclass
from typing import Any

import orjson

from foretell.openai.errors import ApiError
from foretell.openai.shortened import LARGE_BYTES, work_of

DATA = b"data: "
BLANK = b"\n\n"
_FIELDS = (b"data", b"event", b"id", b"retry")
"""The fields of server-sent events; a line that begins with a colon is a comment."""
_MOST_WORK, _MOST_SLOW_WORK = 10_000_000, 2_000_000
"""The most work (`work_of`) for which a text is parsed, by orjson and by `json`."""
NAMES_FIRST = ("id", "object", "created", "model")


def parse_object(text: bytes) -> dict[str, Any] | None:
    """Return the JSON object in `text`; None if it is not one, or has so many values that parsing
    it would block all other requests."""
    work = work_of(text) if len(text) > LARGE_BYTES else 0
    if work > _MOST_WORK:
        return None
    try:
        answer = orjson.loads(text)
    except orjson.JSONDecodeError:
        answer = _parsed_slowly(text) if work < _MOST_SLOW_WORK else None
    return answer if isinstance(answer, dict) else None


def _parsed_slowly(text: bytes) -> object:
    """The value of JSON that orjson refuses and `json` accepts, such as lone surrogates."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def data_of(event: bytes) -> bytes:
    """Return the data of an event whose lines end with LF."""
    values = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line[:5] == b"data:"]
    return b"\n".join(values)


def name_of(event: bytes) -> bytes:
    """Return the field `event` of an event whose lines end with LF; b"" if it has none."""
    names = [line[6:].removeprefix(b" ") for line in event.split(b"\n") if line[:6] == b"event:"]
    return names[-1] if names else b""


def is_event(lines: bytes) -> bool:
    """Whether lines without data can belong to server-sent events."""
    fields = (line.partition(b":")[0] for line in lines.split(b"\n"))
    return all(not field or field in _FIELDS for field in fields)


def written(answer: dict[str, Any], event: bytes = b"") -> bytes:
    """Write an event as vLLM does: its data in one line of JSON without blanks, with the fields
    about the whole answer first. `event`: the original, whose other lines are kept."""
    first = {name: answer[name] for name in NAMES_FIRST if name in answer}
    try:
        text = orjson.dumps({**first, **answer})
    except TypeError:  # what orjson refuses, such as lone surrogates
        text = json.dumps({**first, **answer}, separators=(",", ":")).encode()
    others = [line + b"\n" for line in event.split(b"\n") if line and line[:5] != b"data:"]
    return b"%b%b%b%b" % (b"".join(others), DATA, text, BLANK)


class LineEnds:
    """Converts CRLF and CR to LF, also if a CRLF is split between chunks."""

    def __init__(self) -> None:
        self._after_return = False

    def unix(self, data: bytes) -> bytes:
        """Return the data with LF only; empty if it was just the second half of a CRLF."""
        if self._after_return and data.startswith(b"\n"):
            data = data[1:]
        self._after_return = data.endswith(b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return data


LONGEST_TEXT = 500
"""The most characters of an engine's message that are repeated."""
_STATUSES = frozenset(map(str, range(400, 600)))
_BY_NAME = {
    "badrequesterror": 400,
    "invalid_prompt": 400,
    "invalid_request_error": 400,
    "validationerror": 400,
    "requesttoolargeerror": 413,
    "request_too_large": 413,
    "notfounderror": 404,
    "not_found_error": 404,
    "unprocessableentityerror": 422,
    "ratelimiterror": 429,
    "rate_limit_error": 429,
}
"""Statuses for errors that state none, by type or code in lower case."""


@dataclass(frozen=True, slots=True)
class Reported:
    """An error that an engine reports."""

    status: int
    """The HTTP status that it would have had before the answer began; 500 if not stated."""
    message: str
    """Its message, shortened."""
    body: bytes
    """The error as the body of an answer."""


def reported_error(answer: dict[str, Any]) -> Reported | None:
    """Return the error in an event or an answer; None if there is none."""
    error, kind = answer.get("error"), answer.get("type")
    if not error and kind == "error":
        error = {name: answer.get(name) for name in ("message", "type", "param", "code")}
        answer = {"error": error}
    elif not error and kind == "response.failed":
        response = answer.get("response")
        error = response.get("error") if isinstance(response, dict) else None
        answer = {"error": error}
    if not error or answer.get("choices") or not isinstance(error, dict | str):
        return None
    if isinstance(error, str):
        error = {"message": error}
    message = error.get("message")
    return Reported(
        status=_status(error, answer),
        message=shortened(message if isinstance(message, str) else ""),
        body=orjson.dumps(answer),
    )


def said_in(body: bytes) -> str:
    """Return the error message in the body of an engine's answer; "" if there is none."""
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return shortened(body.decode("utf-8", "replace"))
    if not isinstance(answer, dict):
        return ""
    reported = reported_error(answer)
    if reported is not None:
        return reported.message
    text = answer.get("message") or answer.get("detail")
    return shortened(text) if isinstance(text, str) else ""


def with_text(error: ApiError, said: str) -> ApiError:
    """Add the last engine's message to `error` and return it."""
    if said:
        error.message = f"{error.message}; the last engine said: {said}"
    return error


def shortened(text: str) -> str:
    """Return the text in one line of at most `LONGEST_TEXT` printable characters."""
    line = "".join([each if each.isprintable() else " " for each in text[: 2 * LONGEST_TEXT]])
    return " ".join(line.split())[:LONGEST_TEXT]


def _status(error: dict[str, Any], answer: dict[str, Any]) -> int:
    for value in (error.get("code"), error.get("status"), answer.get("code")):
        if type(value) in (int, str) and str(value) in _STATUSES:
            return int(str(value))
    for value in (error.get("code"), error.get("type")):
        if isinstance(value, str) and value.lower() in _BY_NAME:
            return _BY_NAME[value.lower()]
    return 500
