"""An engine's answer without I/O: bytes in, events out, as h11 does it for HTTP.

A framing is fed the bytes from an engine (`feed`), then either the answer's regular end
(`feed_end`) or its loss (`feed_break`). Once `ended` is true, nothing more may be fed. Its events
say what may go to the client, and what the answer states about itself. It does not know where its
bytes come from or go to. `pass_on` is cheaper than `feed`: it returns what the client gets of some
bytes if nothing else follows from them; otherwise None, and they must be fed.
"""

from dataclasses import dataclass, field
from typing import Any

from foretell.answer.sse import Reported, parse_object
from foretell.openai.shortened import LARGE_BYTES

LONGEST_BODY_BYTES = 1 << 30
"""A longer answer that is not a stream is `Broken`."""
LONGEST_HELD_BYTES = 8 << 20
"""An answer that is not a stream is held until it is complete, so that the request can be retried;
a longer one goes to the client as it comes."""

_MAX_TOKENS = 2**31 - 1
_NAMES = ("prompt_tokens", "completion_tokens", "prompt_tokens_details")
_OTHER_NAMES = ("input_tokens", "output_tokens", "input_tokens_details")
"""Names of the counts in a usage: of completions; of the Responses API and Anthropic's."""


@dataclass(slots=True)
class Lines:
    """Bytes that may go to the client now; of a stream whole events, unless one is too long."""

    data: bytes


@dataclass(slots=True)
class Usage:
    """Token counts that the engine states, summed over all choices; 0 if it states none."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None
    """Prompt tokens found in the prefix cache; None if the engine does not say."""


@dataclass(slots=True)
class End:
    """The regular end of the answer. Nothing follows."""

    data: bytes
    truncated: bool
    """Some choice ended at its token limit."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The engine will not complete the answer. Nothing follows, unless the engine reports this
    itself in the middle of the answer ("error_event") and no other engine could continue: then the
    lines of its report follow, and `End` or the loss of the connection."""

    reason: str
    next_event: int = 0
    """The `sequence_number` of the next event, if events have one."""
    reported: Reported | None = field(default=None, compare=False)
    """The engine's own report, if any."""


Event = Lines | Usage | End | Broken
TOO_LONG = "too_long"
"""The reason why an answer longer than `LONGEST_BODY_BYTES` is `Broken`."""


class WholeFraming:
    """An answer in one piece. It is passed on once it is complete; until then the request can be
    retried. An answer that is not a JSON object, for example from a proxy, is `Broken` instead. One
    longer than `LONGEST_HELD_BYTES` is passed on in parts."""

    def __init__(self, *, any_form: bool = False, at_once: bool = False) -> None:
        self.ended = False
        self.response_id = ""
        self._any_form = any_form
        self._body = bytearray()
        self._length_bytes = 0
        self._begun = at_once

    def feed(self, data: bytes) -> list[Event]:
        assert data
        assert not self.ended
        self._length_bytes += len(data)
        if self._length_bytes > LONGEST_BODY_BYTES:
            self._body.clear()
            return self.feed_break(TOO_LONG)
        if self._begun:
            return [Lines(data)]
        self._body += data
        if len(self._body) <= LONGEST_HELD_BYTES:
            return []
        body, self._body = bytes(self._body), bytearray()
        if not self._any_form and body.lstrip()[:1] != b"{":
            return self.feed_break("not_json")
        self._begun = True
        return [Lines(body)]

    def pass_on(self, _: bytes) -> bytes | None:
        return None

    def feed_end(self) -> list[Event]:
        assert not self.ended
        if self._begun:
            self.ended = True
            return [End(b"", truncated=False)]
        body = bytes(self._body)
        answer = parse_object(body)
        is_long = len(body) > LARGE_BYTES and body.lstrip()[:1] == b"{"  # it may be valid
        if answer is None and not self._any_form and not is_long:
            return self.feed_break("not_json")
        self.ended = True
        answer = answer or {}
        self.response_id = response_id_of(answer)
        reasons = reasons_of(answer)
        truncated = "length" in reasons if reasons else is_cut(answer)
        return [*usage_of(answer), End(body, truncated)]

    def feed_break(self, reason: str) -> list[Event]:
        assert not self.ended
        self.ended = True
        return [Broken(reason)]


def response_id_of(response: object) -> str:
    """Return the id in an answer of the Responses API; "" for any other answer."""
    if not isinstance(response, dict) or response.get("object") != "response":
        return ""
    found = response.get("id")
    return found if isinstance(found, str) else ""


def reasons_of(answer: dict[str, Any]) -> list[Any]:
    """Return the `finish_reason` of each choice in an answer or event; None if not ended."""
    choices = answer.get("choices")
    if not isinstance(choices, list):
        return []
    return [choice.get("finish_reason") for choice in choices if isinstance(choice, dict)]


def is_cut(answer: dict[str, Any]) -> bool:
    """Whether an answer of the Responses API or of Anthropic's ended at its token limit."""
    whole = answer.get("response") or answer.get("delta") or answer
    return isinstance(whole, dict) and (
        whole.get("stop_reason") == "max_tokens" or whole.get("status") == "incomplete"
    )


def usage_of(answer: dict[str, Any]) -> list[Usage]:
    """Return the usage that an answer states, or an empty list."""
    usage = answer.get("usage")
    if usage is None:  # in events of the Responses API and of Anthropic's
        whole = answer.get("response") or answer.get("message")
        usage = whole.get("usage") if isinstance(whole, dict) else None
    if not isinstance(usage, dict):
        return []
    others = "input_tokens" in usage or "output_tokens" in usage
    prompt, output, details_name = _OTHER_NAMES if others else _NAMES
    details = usage.get(details_name)
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    known_cached = None if cached is None else _count(cached)
    return [Usage(_count(usage.get(prompt)), _count(usage.get(output)), known_cached)]


def _count(value: object) -> int:
    """`value` if it is a count that fits protobuf's int32; otherwise 0."""
    return value if type(value) is int and 0 <= value <= _MAX_TOKENS else 0
