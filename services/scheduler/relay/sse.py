"""Server-sent events of JSON, in every form that is lawful."""

import json
from typing import Any

import orjson

DATA = b"data: "
BLANK = b"\n\n"
_FIELDS = (b"data", b"event", b"id", b"retry")
"""The fields of server-sent events; a line that begins with a colon is a comment."""
_NAMES_FIRST = ("id", "object", "created", "model")


def parse_object(text: bytes) -> dict[str, Any] | None:
    """The JSON object in `text`; None if it is none."""
    try:
        answer = orjson.loads(text)
    except orjson.JSONDecodeError:
        answer = _parsed_slowly(text)
    return answer if isinstance(answer, dict) else None


def _parsed_slowly(text: bytes) -> object:
    """What orjson refuses and others accept, such as lone surrogates."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def data_of(event: bytes) -> bytes:
    """The data of an event whose lines end with LF."""
    values = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line[:5] == b"data:"]
    return b"\n".join(values)


def name_of(event: bytes) -> bytes:
    """The field `event` of an event whose lines end with LF; "" where it has none."""
    names = [line[6:].removeprefix(b" ") for line in event.split(b"\n") if line[:6] == b"event:"]
    return names[-1] if names else b""


def is_event(lines: bytes) -> bool:
    """Whether lines without data can belong to server-sent events."""
    fields = (line.partition(b":")[0] for line in lines.split(b"\n"))
    return all(not field or field in _FIELDS for field in fields)


def written(answer: dict[str, Any], event: bytes = b"") -> bytes:
    """The event anew as vLLM writes it: its data in one line, without blanks in its JSON, and what
    tells of the whole answer first. `event`: whose other lines stay as they are."""
    first = {name: answer[name] for name in _NAMES_FIRST if name in answer}
    try:
        text = orjson.dumps({**first, **answer})
    except TypeError:  # what orjson refuses, such as lone surrogates
        text = json.dumps({**first, **answer}, separators=(",", ":")).encode()
    others = [line + b"\n" for line in event.split(b"\n") if line and line[:5] != b"data:"]
    return b"%b%b%b%b" % (b"".join(others), DATA, text, BLANK)


class LineEnds:
    """Makes LF of every line end, CRLF and CR too, wherever the bytes are cut."""

    def __init__(self) -> None:
        self._after_return = False

    def unix(self, data: bytes) -> bytes:
        """The data with LF alone; empty where it was the second half of a line end."""
        if self._after_return and data.startswith(b"\n"):
            data = data[1:]
        self._after_return = data.endswith(b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return data
