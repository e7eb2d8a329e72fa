"""An engine's own word of a failure, in whichever of the three APIs it says it."""

from dataclasses import dataclass
from typing import Any

import orjson

from foretell.services.scheduler.api.errors import ApiError

LONGEST_TEXT = 500
"""Characters of an engine's text that are repeated."""
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
"""Statuses of errors that state none, by their types and codes in lower case."""


@dataclass(frozen=True, slots=True)
class Reported:
    """What an engine says of a failure."""

    status: int
    """The HTTP status that it would have had before its answer began; 500 where nobody says."""
    message: str
    """Its text, shortened."""
    body: bytes
    """The error as a whole answer."""


def reported_error(answer: dict[str, Any]) -> Reported | None:
    """The error in an event or an answer; None: it tells of none."""
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
    """The text of an engine's failure in the body of its answer; "" where it says nothing."""
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
    """The error with what the last engine said of it."""
    if said:
        error.message = f"{error.message}; the last engine said: {said}"
    return error


def shortened(text: str) -> str:
    """The text in one line of printable characters."""
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
