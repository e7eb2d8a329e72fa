"""An engine's answer without I/O: bytes in, events out, as h11 does it for HTTP.

A framing is fed what arrives from an engine (`feed`), then either the answer's regular end
(`feed_end`) or its loss (`feed_break`). It says what may go to the client, byte for byte as it
came, and what the answer tells about itself. It does not know where its bytes come from or go to.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from foretell.services.scheduler.relay.beginning import Beginning, NoBeginning
from foretell.services.scheduler.relay.reported import Reported, reported_error
from foretell.services.scheduler.relay.sse import DATA, LineEnds, parse_object

LONGEST_LINE_BYTES = 1 << 20
"""A longer line of a stream is handed out in parts and not read."""
LONGEST_BODY_BYTES = 1 << 30
"""A longer answer that is not a stream is refused, or broken off."""
LONGEST_HELD_BYTES = 8 << 20
"""An answer that is not a stream is held until it is whole, so that it can be repeated elsewhere; a
longer one goes to the client as it comes."""

_ERROR = b'"error"'
"""In every event that tells about a failure, and in no text: its quotes are escaped."""
OBJECT = DATA + b"{"
_MAX_TOKENS = 2**31 - 1
_NAMES = ("prompt_tokens", "completion_tokens", "prompt_tokens_details")
_OTHER_NAMES = ("input_tokens", "output_tokens", "input_tokens_details")
"""The counts in a usage, as in completions; as in the Responses API and in Anthropic's."""


@dataclass(slots=True)
class Lines:
    """Whole lines that may go to the client now, unchanged.

    They are incomplete only where a line is longer than `LONGEST_LINE_BYTES`.
    """

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
    """The last bytes for the client: of a stream what stands after its last line end, else all."""
    truncated: bool
    """Some choice was ended by its limit of tokens."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The engine will not complete the answer.

    Nothing follows, unless the engine itself says so in mid-answer ("error_event"): then the lines
    that say it follow, and `End` or the loss of the connection.

    `tokens_out` counts the output tokens in the lines handed out before, summed over all choices.
    Where the engine states token ids (`return_token_ids`), these are counted. Elsewhere each event
    that adds text, reasoning or tool calls to a choice counts as one token. That is a lower bound:
    vLLM may put several tokens into an event, and sends a token that ends within a character as an
    event without text.
    """

    reason: str
    """A label for metrics, such as "connection_lost"."""
    tokens_out: int
    exact: bool
    """All tokens were counted by their ids."""
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


class StreamFraming:
    """A stream of server-sent events.

    Only whole lines are handed out: after a part of one, no event of ours could follow. A stream
    whose first event is an error, which does not begin with server-sent events of JSON, or which
    ends without one, is `Broken` with nothing handed out, so that the request can be repeated
    elsewhere.
    """

    def __init__(self, opening: Sequence[bytes] = ()) -> None:
        """`opening` names events that come before there is a token: they wait for the next one."""
        self.ended = False
        self.response_id = ""
        self._beginning: Beginning | None = Beginning(opening)
        """Nothing was handed out: what waits for the first event that tells something."""
        self._held = bytearray()
        """The beginning of a line whose end has not come."""
        self._ends: LineEnds | None = None
        self._within_line = False
        """The line that `_held` continues was too long: its beginning was handed out."""
        self._error_reported = False
        self._reported: Reported | None = None
        self._truncated = False
        self._tokens_out = 0
        self._exact = True
        self._next_event = 0

    def feed(self, data: bytes) -> list[Event]:
        """Take what has arrived, at least one byte."""
        assert data
        assert not self.ended
        lines = data if data.endswith(b"\n") and not self._held else self._whole_lines(data)
        if self._beginning is not None:
            try:
                # A part of a line that is too long goes out, whatever it is.
                if not self._beginning.take(lines) and lines[-1:] in (b"", b"\n"):
                    return []
            except NoBeginning as error:
                return self._break(error.reason, error.reported)
            lines = self._begin()
        error_at = self._error_at(lines)
        if error_at is None:
            return self._hand_out(lines)
        before = self._hand_out(lines[:error_at])
        return [*before, self._report(), *self._hand_out(lines[error_at:])]

    def _begin(self) -> bytes:
        """All that has waited, which is handed out now."""
        assert self._beginning is not None
        lines, self._beginning = bytes(self._beginning.lines), None
        return lines

    def pass_on(self, data: bytes) -> bytes | None:
        """See `Framing`."""
        return None

    def _whole_lines(self, data: bytes) -> bytes:
        """The lines that `data` completes; what follows them is held."""
        if self._ends is not None or b"\r" in data.replace(b"\r\n", b"").removesuffix(b"\r"):
            self._ends = self._ends or LineEnds()  # some line ends with CR alone: no line would
            data = self._ends.unix(data)
        end = data.rfind(b"\n") + 1
        lines, rest = data[:end], data[end:]
        if lines and self._held:
            lines = bytes(self._held) + lines
            self._held.clear()
        self._held += rest
        if len(self._held) > LONGEST_LINE_BYTES:
            lines += self._held
            self._held.clear()
        return lines

    def feed_end(self) -> list[Event]:
        """The engine has ended its stream as HTTP wants it."""
        assert not self.ended
        rest = bytes(self._held)
        if self._beginning is not None:
            try:
                if not self._beginning.take(rest):
                    self._beginning.end()
            except NoBeginning as error:
                return self._break(error.reason, error.reported)
            rest = self._begin()
        first = [self._report()] if self._error_at(rest) is not None else []
        self.ended = True
        return [*first, *self._read(rest + b"\n"), End(rest, self._truncated)]

    def feed_break(self, reason: str) -> list[Event]:
        """The stream broke off for `reason`; what is held of a line is dropped."""
        assert not self.ended
        return self._break(reason)

    def _break(self, reason: str, reported: Reported | None = None) -> list[Event]:
        self.ended = True
        return [self._broken(reason, reported)]

    def _broken(self, reason: str, reported: Reported | None = None) -> Broken:
        return Broken(reason, self._tokens_out, self._exact, self._next_event, reported)

    def _report(self) -> Broken:
        self._error_reported = True
        return self._broken("error_event", self._reported)

    def _error_at(self, lines: bytes) -> int | None:
        """Where the stream's first error event begins; None if it is not in `lines`."""
        if _ERROR not in lines or self._error_reported:
            return None
        at = begins_at = 0
        for line in lines.split(b"\n"):
            is_part = self._within_line and at == 0
            if line.startswith(b"data:") and _ERROR in line and not is_part:
                self._reported = reported_error(parse_object(line[5:]) or {})
                if self._reported is not None:
                    return begins_at
            at += len(line) + 1
            if not line.strip():
                begins_at = at
        return None

    def _hand_out(self, lines: bytes) -> list[Event]:
        if not lines:
            return []
        events = self._read(lines)
        events.append(Lines(lines))
        return events

    def _read(self, data: bytes) -> list[Event]:
        """What whole lines tell, and perhaps the part of one that was too long."""
        events: list[Event] = []
        if data.endswith(b"\n") and data.find(b"\n") >= len(data) - 2:  # one line, as mostly
            lines, part = [data], b""
        else:
            *lines, part = data.split(b"\n")
        for line in lines[1:] if self._within_line else lines:
            # To parse it is no dearer than to search its bytes. What is no object is relayed all
            # the same.
            if line.startswith(OBJECT):
                self._read_object(parse_object(line[len(DATA) :]) or {}, events)
            elif line.startswith(b"data:") and b"{" in line:
                self._read_object(parse_object(line[5:]) or {}, events)
        self._within_line = bool(part)
        return events

    def _read_object(self, answer: dict[str, Any], events: list[Event]) -> None:
        """Count the tokens of an event."""
        for choice in _choices(answer):
            if choice.get("finish_reason") == "length":
                self._truncated = True
            token_ids = choice.get("token_ids")
            if isinstance(token_ids, list):
                self._tokens_out += len(token_ids)
            elif _has_output(choice):
                self._tokens_out += 1
                self._exact = False
        if "type" in answer:
            self._read_typed(answer)
            events += _usage(answer)
        elif answer.get("usage") is not None:
            events += _usage(answer)

    def _read_typed(self, answer: dict[str, Any]) -> None:
        """An event of the Responses API or of Anthropic's, which have no choices."""
        kind, number = answer["type"], answer.get("sequence_number")
        if isinstance(number, int):
            self._next_event = number + 1
        if not self.response_id:
            self.response_id = _response_id(answer.get("response"))
        if isinstance(kind, str) and kind.endswith("delta") and kind != "message_delta":
            self._tokens_out += 1
            self._exact = False
        elif _is_cut(answer):
            self._truncated = True


class WholeFraming:
    """An answer in one piece. It is handed out when it is whole: until then it can be repeated.

    So can one that is no JSON object, as from a proxy in place of the engine. What is longer than
    `LONGEST_HELD_BYTES` is handed out in parts.
    """

    def __init__(self, *, any_form: bool = False) -> None:
        """`any_form`: it need not be JSON."""
        self.ended = False
        self.response_id = ""
        self._any_form = any_form
        self._body = bytearray()
        self._length_bytes = 0
        self._begun = False
        """Parts were handed out."""

    def feed(self, data: bytes) -> list[Event]:
        """Take what has arrived, at least one byte."""
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
        """See `Framing`."""
        return None

    def feed_end(self) -> list[Event]:
        """The answer is whole."""
        assert not self.ended
        self.ended = True
        if self._begun:
            return [End(b"", truncated=False)]
        body = bytes(self._body)
        answer = parse_object(body)
        if answer is None and not self._any_form:
            return self._broken("not_json")
        answer = answer or {}
        self.response_id = _response_id(answer)
        truncated = _is_truncated(answer)
        return [*_usage(answer), End(body, truncated)]

    def feed_break(self, reason: str) -> list[Event]:
        """The answer broke off for `reason`; what came of it is dropped."""
        assert not self.ended
        self.ended = True
        return self._broken(reason)

    def _broken(self, reason: str) -> list[Event]:
        return [Broken(reason, tokens_out=0, exact=True)]


class OpaqueFraming:
    """An answer whose bytes nobody here can read: they go to the client as they come."""

    def __init__(self) -> None:
        self.ended = False
        self.response_id = ""

    def feed(self, data: bytes) -> list[Event]:
        """Take what has arrived, at least one byte."""
        return [Lines(data)]

    def pass_on(self, data: bytes) -> bytes | None:
        """See `Framing`."""
        return data

    def feed_end(self) -> list[Event]:
        """The answer is whole."""
        self.ended = True
        return [End(b"", truncated=False)]

    def feed_break(self, reason: str) -> list[Event]:
        """The answer broke off for `reason`."""
        self.ended = True
        return [Broken(reason, tokens_out=0, exact=False)]


def _response_id(response: object) -> str:
    """The id in an answer of the Responses API; "": it is none."""
    if not isinstance(response, dict) or response.get("object") != "response":
        return ""
    found = response.get("id")
    return found if isinstance(found, str) else ""


def _choices(answer: dict[str, Any]) -> list[dict[str, Any]]:
    choices = answer.get("choices")
    return [c for c in choices if isinstance(c, dict)] if isinstance(choices, list) else []


def _is_truncated(answer: dict[str, Any]) -> bool:
    choices = _choices(answer)
    if not choices:
        return _is_cut(answer)
    return "length" in [choice.get("finish_reason") for choice in choices]


def _has_output(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return bool(choice.get("text"))
    return bool(delta.get("content")) or any(
        value for name, value in delta.items() if name != "role"
    )


def _is_cut(answer: dict[str, Any]) -> bool:
    """The limit of tokens ended an answer of the Responses API or of Anthropic's."""
    whole = answer.get("response") or answer.get("delta") or answer
    return isinstance(whole, dict) and (
        whole.get("stop_reason") == "max_tokens" or whole.get("status") == "incomplete"
    )


def _usage(answer: dict[str, Any]) -> Iterator[Usage]:
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
