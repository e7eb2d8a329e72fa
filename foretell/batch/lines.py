"""The lines of a batch's input file, and what is wrong with them."""

import json
import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
"""The endpoints that a batch may be for."""
MOST_REQUESTS = 50_000
"""Requests in one batch; for embeddings also the inputs of all requests together."""
MOST_ERRORS = 100
"""Errors that are listed for one batch."""
MOST_LINE_BYTES = 16 << 20
_MOST_VALUES = 1_100_000
"""The most values of a line, roughly a million token ids. Parsing them blocks the process for 0.1 s
and takes up to 60 MB."""
UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
"""Characters that databases cannot store."""
_LONGEST_CUSTOM_ID = 512
_EMBEDDINGS = "/v1/embeddings"


@dataclass(frozen=True, slots=True)
class LineError:
    """What is wrong with one line, or with the whole file where `line` is None."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None
    """Counted from 1."""


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One valid request."""

    custom_id: str
    model: str
    body: dict[str, Any]


class _Wrong(Exception):
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


class Checker:
    """Checks the lines of one batch, in their order. It keeps the custom ids, but no lines."""

    def __init__(
        self, endpoint: str, models: Collection[str] | None, most_requests: int = MOST_REQUESTS
    ) -> None:
        """`models`: those that requests may name; None: any."""
        self._endpoint = endpoint
        self._most = most_requests
        self._models = models
        self._custom_ids: set[str] = set()
        self._inputs = 0
        self.requests = 0
        """Lines so far that are not empty."""
        self.model = ""
        """The model of all requests, once one is known."""
        self.errors: list[LineError] = []
        """At most `MOST_ERRORS`."""

    @property
    def full(self) -> bool:
        """Whether enough errors are known to stop checking."""
        return len(self.errors) >= MOST_ERRORS

    def check(self, number: int, raw: bytes) -> BatchLine | None:
        """Return the request in line `number`, counted from 1; None if it is empty or wrong."""
        if not raw.strip():
            if number > 2 * self._most and not self.full:
                text = f"a batch has at most {2 * self._most} lines"
                self.errors.append(LineError("too_many_tasks", text, line=number))
            return None
        self.requests += 1
        try:
            if self.requests > self._most:
                raise _Wrong("too_many_tasks", f"a batch has at most {self._most} requests")
            return self._read(raw)
        except _Wrong as wrong:
            if not self.full:
                self.errors.append(LineError(wrong.code, wrong.message, wrong.param, number))
            return None

    def end(self) -> None:
        """Add an error if there were no requests; to be called after the last line."""
        if not self.requests:
            self.errors.append(LineError("empty_file", "the file has no requests"))

    def _read(self, raw: bytes) -> BatchLine:
        data = _json_object(raw)
        custom_id = data.get("custom_id")
        if not isinstance(custom_id, str) or not custom_id:
            raise _missing("custom_id", "a non-empty string")
        if len(custom_id) > _LONGEST_CUSTOM_ID:
            text = f"'custom_id' has more than {_LONGEST_CUSTOM_ID} characters"
            raise _Wrong("invalid_value", text, "custom_id")
        if UNSTORABLE.search(custom_id):
            text = "'custom_id' has a null character or half of a surrogate pair"
            raise _Wrong("invalid_value", text, "custom_id")
        if custom_id in self._custom_ids:
            text = f"the custom_id '{custom_id}' stands in an earlier line"
            raise _Wrong("duplicate_custom_id", text, "custom_id")
        self._custom_ids.add(custom_id)
        if data.get("method") != "POST":
            raise _Wrong("invalid_method", "'method' must be 'POST'", "method")
        if data.get("url") != self._endpoint:
            text = f"the batch is for '{self._endpoint}', not '{_short(data.get('url'))}'"
            raise _Wrong("url_mismatch", text, "url")
        body = data.get("body")
        if not isinstance(body, dict):
            raise _missing("body", "an object")
        if body.get("stream"):
            raise _Wrong("invalid_value", "a batch cannot stream", "body.stream")
        self._count_inputs(body)
        return BatchLine(custom_id, self._model_of(body), body)

    def _model_of(self, body: dict[str, Any]) -> str:
        model = body.get("model")
        if not isinstance(model, str) or not model:
            raise _missing("body.model", "a non-empty string")
        if self._models is not None and model not in self._models:
            text = f"The model '{_short(model)}' does not exist."
            raise _Wrong("model_not_found", text, "body.model")
        self.model = self.model or model
        if model != self.model:
            text = f"all requests of a batch have one model, here '{self.model}'"
            raise _Wrong("model_mismatch", text, "body.model")
        return model

    def _count_inputs(self, body: dict[str, Any]) -> None:
        if self._endpoint != _EMBEDDINGS:
            return
        given = body.get("input")
        # A list of numbers is one input, given as token ids.
        several = isinstance(given, list) and not all(type(item) is int for item in given)
        self._inputs += len(given) if several and isinstance(given, list) else 1
        if self._inputs > self._most:
            text = f"the requests of a batch have at most {self._most} inputs in all"
            raise _Wrong("too_many_tasks", text, "body.input")


def first_lines(head: bytes, length_bytes: int) -> tuple[int, str]:
    """Estimate the number of requests in a file of this length that begins with `head`; return it
    and the model of the first request, or 0 and "" if `head` does not tell."""
    whole = head if len(head) >= length_bytes else head[: head.rfind(b"\n") + 1]
    lines = [line for line in whole.splitlines() if line.strip()]
    try:
        model = json.loads(lines[0])["body"]["model"]
    except (ValueError, TypeError, LookupError, RecursionError):
        return 0, ""
    return round(len(lines) * length_bytes / len(whole)), str(model)


def request_of(raw: bytes) -> tuple[str, bytes]:
    """The custom_id and the body of a line that was found valid."""
    data = _parsed(raw)
    with suppress(TypeError):  # for lone surrogates and deep nesting
        return data["custom_id"], orjson.dumps(data["body"])
    return data["custom_id"], json.dumps(data["body"], separators=(",", ":")).encode()


def _parsed(raw: bytes) -> Any:
    """Parse a line; raises ValueError or RecursionError."""
    with suppress(ValueError):  # for lone surrogates and deep nesting
        return orjson.loads(raw)
    return json.loads(raw)


def _json_object(raw: bytes) -> dict[str, Any]:
    if sum(map(raw.count, (b",", b"[", b"{", b":", b":"))) > _MOST_VALUES:  # ":" twice, for keys
        text = f"a line has at most {_MOST_VALUES} values; keys count as two more"
        raise _Wrong("invalid_json_line", text)
    try:
        data = _parsed(raw)
    except (ValueError, RecursionError) as error:  # ValueError: also if it is not UTF-8
        raise _Wrong("invalid_json_line", "this line is not valid JSON") from error
    if not isinstance(data, dict):
        raise _Wrong("invalid_json_line", "this line is no JSON object")
    return data


def _missing(param: str, what: str) -> _Wrong:
    return _Wrong("missing_required_parameter", f"'{param}' must be {what}", param)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 100 else f"{text[:100]}…"
