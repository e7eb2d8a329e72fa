"""An engine's answer without I/O: bytes in, events out, as h11 does it for HTTP.

A framing is fed what arrives from an engine (`feed`), then either the answer's regular end
(`feed_end`) or its loss (`feed_break`). It says what may go to the client, byte for byte as it
came, and what the answer tells about itself. It does not know where its bytes come from or go to.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from foretell.services.scheduler.relay.sse import Reported, parse_object

LONGEST_BODY_BYTES = 1 << 30
"""A longer answer that is not a stream is refused, or broken off."""
LONGEST_HELD_BYTES = 8 << 20
"""An answer that is not a stream is held until it is whole, so that it can be repeated elsewhere; a
longer one goes to the client as it comes."""

_MAX_TOKENS = 2**31 - 1
_NAMES = ("prompt_tokens", "completion_tokens", "prompt_tokens_details")
_OTHER_NAMES = ("input_tokens", "output_tokens", "input_tokens_details")
"""The counts in a usage, as in completions; as in the Responses API and in Anthropic's."""


@dataclass(slots=True)
class Lines:
    """What may go to the client now: of a stream whole events, unless one is too long."""

    data: bytes


@dataclass(slots=True)
class Usage:
    """Token counts that the engine states, summed over all choices; 0 where it does not."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None
    """Prompt tokens found in the prefix cache; None where the engine does not say."""


@dataclass(slots=True)
class End:
    """The answer has come to its regular end. Nothing follows."""

    data: bytes
    truncated: bool
    """Some choice was ended by its limit of tokens."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The engine will not complete the answer. Nothing follows, unless the engine itself says so in
    mid-answer ("error_event"): then the lines that say it follow, and `End` or the loss of the
    connection."""

    reason: str
    next_event: int = 0
    """The number of the event that would have followed, where they are numbered."""
    reported: Reported | None = field(default=None, compare=False)
    """What the engine says of it, where it says so itself."""


@dataclass(frozen=True, slots=True)
class TooLong:
    """The answer is longer than `LONGEST_BODY_BYTES`. Nothing follows, and nothing was sent."""


Event = Lines | Usage | End | Broken | TooLong


class Framing(Protocol):
    """One answer, read from its beginning to its end. `feed_end` and `feed_break` end it."""

    ended: bool
    """An event that ends the answer was returned: nothing may be fed any more."""
    response_id: str
    """The id of an answer of the Responses API, once it has come; else ""."""

    def feed(self, data: bytes) -> list[Event]: ...

    def pass_on(self, data: bytes) -> bytes | None:
        """What the client gets of `data` where that is all that follows from it, as from most that
        comes of a stream: cheaper than `feed`, which is to be asked where this is None."""
        ...

    def feed_end(self) -> list[Event]: ...

    def feed_break(self, reason: str) -> list[Event]: ...


class WholeFraming:
    """An answer in one piece. It is handed out when it is whole: until then it can be repeated. So
    can one that is no JSON object, as from a proxy in place of the engine. What is longer than
    `LONGEST_HELD_BYTES` is handed out in parts."""

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
            self.ended = True
            return self._broken("too_long") if self._begun else [TooLong()]
        if self._begun:
            return [Lines(data)]
        self._body += data
        if len(self._body) <= LONGEST_HELD_BYTES:
            return []
        body, self._body = bytes(self._body), bytearray()
        if not self._any_form and body.lstrip()[:1] != b"{":
            self.ended = True
            return self._broken("not_json")
        self._begun = True
        return [Lines(body)]

    def pass_on(self, data: bytes) -> bytes | None:
        return None

    def feed_end(self) -> list[Event]:
        assert not self.ended
        self.ended = True
        if self._begun:
            return [End(b"", truncated=False)]
        body = bytes(self._body)
        answer = parse_object(body)
        if answer is None and not self._any_form:
            return self._broken("not_json")
        answer = answer or {}
        self.response_id = response_id_of(answer)
        truncated = _is_truncated(answer)
        return [*usage_of(answer), End(body, truncated)]

    def feed_break(self, reason: str) -> list[Event]:
        assert not self.ended
        self.ended = True
        return self._broken(reason)

    def _broken(self, reason: str) -> list[Event]:
        return [Broken(reason)]


def response_id_of(response: object) -> str:
    """The id in an answer of the Responses API; "": it is none."""
    if not isinstance(response, dict) or response.get("object") != "response":
        return ""
    found = response.get("id")
    return found if isinstance(found, str) else ""


def choices_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    choices = answer.get("choices")
    return [c for c in choices if isinstance(c, dict)] if isinstance(choices, list) else []


def _is_truncated(answer: dict[str, Any]) -> bool:
    choices = choices_of(answer)
    if not choices:
        return is_cut(answer)
    return "length" in [choice.get("finish_reason") for choice in choices]


def is_cut(answer: dict[str, Any]) -> bool:
    """The limit of tokens ended an answer of the Responses API or of Anthropic's."""
    whole = answer.get("response") or answer.get("delta") or answer
    return isinstance(whole, dict) and (
        whole.get("stop_reason") == "max_tokens" or whole.get("status") == "incomplete"
    )


def usage_of(answer: dict[str, Any]) -> Iterator[Usage]:
    usage = answer.get("usage")
    if usage is None:  # in events of the Responses API and of Anthropic's
        whole = answer.get("response") or answer.get("message")
        usage = whole.get("usage") if isinstance(whole, dict) else None
    if not isinstance(usage, dict):
        return
    others = "input_tokens" in usage or "output_tokens" in usage
    prompt, output, details_name = _OTHER_NAMES if others else _NAMES
    details = usage.get(details_name)
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    yield Usage(
        prompt_tokens=_count(usage.get(prompt)),
        output_tokens=_count(usage.get(output)),
        cached_tokens=None if cached is None else _count(cached),
    )


def _count(value: object) -> int:
    """A count that can be sent on in protobuf's int32; anything else is 0."""
    return value if type(value) is int and 0 <= value <= _MAX_TOKENS else 0
