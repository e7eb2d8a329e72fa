"""What an answer says of itself: token counts, and why it ended. Only our accounting reads it."""

import json
from typing import Any

from services.scheduler.record.outcome import Result

ERROR_EVENT = b'data: {"error"'
"""How vLLM begins the event in which it tells of a failure within a stream."""
_DATA = b"data: "


def read_usage(body: bytes, result: Result) -> None:
    """Token counts and the finish reason of an unstreamed answer, or of one event."""
    try:
        answer: dict[str, Any] = json.loads(body)
        usage = answer.get("usage") or {}
        result.prompt_tokens = _count(usage.get("prompt_tokens"))
        result.output_tokens = _count(usage.get("completion_tokens"))
        details = usage.get("prompt_tokens_details") or {}
        if isinstance(details.get("cached_tokens"), int):
            result.cached_tokens = _count(details["cached_tokens"])
        choices = answer.get("choices") or []
        result.truncated |= any(c.get("finish_reason") == "length" for c in choices)
    except (ValueError, AttributeError, TypeError, RecursionError):
        return  # relayed all the same: only our accounting goes without


def read_stream_tail(tail: bytes, result: Result) -> None:
    """The same from the last events of a stream; usage is there if the client asked for it."""
    for line in tail.split(b"\n"):
        if line.startswith(ERROR_EVENT):
            result.finished = False
        if not line.startswith(_DATA + b"{"):
            continue
        if b'"finish_reason":"length"' in line:
            result.truncated = True
        if b'"completion_tokens"' in line:
            read_usage(line[len(_DATA) :], result)


def _count(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**31 else 0
