"""The lines of a batch's output and error files, and the tokens that its answers took."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Self


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of prompts and answers."""

    input_tokens: int = 0
    cached_tokens: int = 0
    """Those of `input_tokens` that were found in a prefix cache."""
    output_tokens: int = 0
    reasoning_tokens: int = 0
    """Those of `output_tokens` that were spent on reasoning."""

    def __add__(self, other: "TokenUsage") -> Self:
        return type(self)(
            self.input_tokens + other.input_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )

    @property
    def sharing_ratio(self) -> float:
        """Share of the prompt tokens that engines report as found in a prefix cache."""
        return self.cached_tokens / self.input_tokens if self.input_tokens else 0.0

    def shown(self) -> dict[str, Any]:
        """The usage as OpenAI's API shows it."""
        return {
            "input_tokens": self.input_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens},
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "total_tokens": self.input_tokens + self.output_tokens,
        }


NO_USAGE = TokenUsage()


@dataclass(frozen=True, slots=True)
class Record:
    """The outcome of one request: its line in one of the batch's two files."""

    ok: bool
    """Whether the line belongs in the output file; otherwise in the error file."""
    line: bytes
    """The line with its end."""
    usage: TokenUsage = NO_USAGE


def answered(record_id: str, custom_id: str, status: int, request_id: str, body: bytes) -> Record:
    """The record of a request that was answered with this HTTP status and JSON body."""
    parsed = _parsed(body)
    as_it_came = isinstance(parsed, dict) and b"\n" not in body and b"\r" not in body
    text = body.decode(errors="replace") if as_it_came else json.dumps(parsed)
    response = (
        f'{{"status_code": {status}, "request_id": {json.dumps(request_id)}, "body": {text}}}'
    )
    ok = 200 <= status < 300
    line = _line(record_id, custom_id, response, "null")
    return Record(ok, line, _usage_of(parsed) if ok else NO_USAGE)


def unanswered(record_id: str, custom_id: str, code: str, message: str) -> Record:
    """The record of a request that has no answer."""
    error = json.dumps({"code": code, "message": message})
    return Record(False, _line(record_id, custom_id, "null", error))


def expired(record_id: str, custom_id: str) -> Record:
    """The record of a request that had not ended when its batch's time ran out."""
    text = "This request could not be executed before the completion window expired."
    return unanswered(record_id, custom_id, "batch_expired", text)


def cancelled(record_id: str, custom_id: str) -> Record:
    """The record of a request that had not ended when its batch was cancelled."""
    text = "This request was not executed because the batch was cancelled."
    return unanswered(record_id, custom_id, "batch_cancelled", text)


def _line(record_id: str, custom_id: str, response: str, error: str) -> bytes:
    head = f'{{"id": {json.dumps(record_id)}, "custom_id": {json.dumps(custom_id)}'
    return f'{head}, "response": {response}, "error": {error}}}\n'.encode()


def _parsed(body: bytes) -> object:
    """The JSON in `body`; anything else becomes a string, so that the line stays valid."""
    text = body.decode(errors="replace")
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        return text


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _usage_of(body: object) -> TokenUsage:
    """The tokens of an answer, by the field names of chat completions or of responses."""
    usage = body.get("usage") if isinstance(body, dict) else None
    if not isinstance(usage, Mapping):
        return NO_USAGE
    prompt, answer = ("input", "output") if "input_tokens" in usage else ("prompt", "completion")
    return TokenUsage(
        _count(usage, f"{prompt}_tokens"),
        _count(usage.get(f"{prompt}_tokens_details"), "cached_tokens"),
        _count(usage, f"{answer}_tokens"),
        _count(usage.get(f"{answer}_tokens_details"), "reasoning_tokens"),
    )


def _count(where: object, name: str) -> int:
    value = where.get(name) if isinstance(where, Mapping) else None
    return value if type(value) is int and value >= 0 else 0
