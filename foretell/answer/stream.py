"""A stream of server-sent events without I/O: bytes in, whole events out.

Where another engine could go on with the stream, `Progress` is told of each event.
"""

import re
from collections.abc import Sequence
from typing import Any

from foretell.answer import sse
from foretell.answer.choice import Diverged
from foretell.answer.continuation import (
    DONE,
    Progress,
    nothing_followed,
)
from foretell.answer.framing import (
    Broken,
    End,
    Event,
    Lines,
    is_cut,
    reasons_of,
    response_id_of,
    usage_of,
)
from foretell.answer.sse import BLANK, DATA
from foretell.openai.shortened import LARGE_BYTES

LONGEST_EVENT_BYTES = 4 << 20
"""A longer event is handed out in parts and not read, and nobody can go on with its stream."""
MOST_WAITING_BYTES = 1 << 20
"""What is held of a stream before its first event that says something; beyond that it goes out."""
_MOST_LINES = 10_000
"""Of a long event: each takes time."""
_OBJECT = DATA + b"{"
_ERROR = b'"error"'
"""In every event that tells about a failure, and in no text: its quotes are escaped."""
_TELLING = re.compile(
    rb'"(?:error|finish_reason|prompt_token_ids|token_ids|type|usage)"(?!:null[,}])'
)
"""In every event that tells more than a text."""

Ending = tuple[str, sse.Reported | None]
"""Why a stream has to end, and what the engine says of it."""


class StreamFraming:
    """Only whole events are handed out: after a part of one, no event of ours could follow.

    Line ends become LF. A stream whose first event is an error, which does not begin with
    server-sent events of JSON, or which ends without one, is `Broken` with nothing handed out, so
    that the request can be repeated elsewhere. Later the first event that tells of an error ends
    it, and is not handed out, where another engine could go on.
    """

    def __init__(self, progress: Progress | None = None, opening: Sequence[bytes] = ()) -> None:
        """`progress`: None: nobody goes on with it. `opening` names events that come before there
        is a token: they wait for the next one."""
        self.ended = False
        self.response_id = ""
        self._progress = progress or nothing_followed()
        self._goes_on = progress is not None
        self._opening = frozenset(opening)
        self._begun = False
        self._waiting = bytearray()
        """What waits for the first event that says something."""
        self._held = bytearray()
        """The beginning of an event whose end has not come."""
        self._ends: sse.LineEnds | None = None
        self._within_long = False
        """The event that `_held` continues was too long: its beginning was handed out."""
        self._error_reported = False
        self._truncated = False
        self._unfollowed = progress is None
        """Events go to the client whatever they say, and only what some tell is noted."""
        self._next_event = 0

    def feed(self, data: bytes) -> list[Event]:
        assert data
        assert not self.ended
        if self._ends is not None or b"\r" in data:  # no JSON has it: it would be escaped
            self._ends = self._ends or sse.LineEnds()
            data = self._ends.unix(data)
        if self._held:
            # What is held was looked at before, but for its last byte.
            if BLANK not in self._held[-1:] + data:
                self._held += data
                return self._let_out()
            data = bytes(self._held) + data
            self._held.clear()
        if data.endswith(BLANK) and data.find(BLANK) == len(data) - len(BLANK):  # as mostly
            return self._take([data])
        *parts, rest = data.split(BLANK)
        self._held += rest
        events = self._take([part + BLANK for part in parts])
        return events if self.ended else events + self._let_out()

    def pass_on(self, data: bytes) -> bytes | None:
        if self._held or self._ends is not None or b"\r" in data:
            return None
        return self._taken(data) if data.find(BLANK) == len(data) - len(BLANK) else None

    def feed_end(self) -> list[Event]:
        """The engine has ended its stream as HTTP wants it."""
        assert not self.ended
        events: list[Event] = []
        if rest := bytes(self._held).rstrip(b"\n"):
            self._held.clear()
            events = self._take([rest + BLANK])
            text = sse.data_of(rest)
            is_whole = text.strip() == b"[DONE]" or sse.parse_object(text) is not None
            if not is_whole and events and type(events[-1]) is Lines:
                events[-1].data = events[-1].data.removesuffix(BLANK)  # it stays cut off
        if self.ended:
            return events
        if self._progress.is_behind:
            return events + self._break("diverged")
        if not self._begun:
            return events + self._break("empty_stream")
        if self._progress.lacks_end:
            return events + self._break("ended_early")
        self.ended = True
        return [*events, End(b"", self._truncated)]

    def feed_break(self, reason: str) -> list[Event]:
        """The stream broke off for `reason`; what is held of an event is dropped."""
        assert not self.ended
        return self._break(reason)

    # --- the end ---

    def _break(self, reason: str, reported: sse.Reported | None = None) -> list[Event]:
        self.ended = True
        if (rest := self._progress.rest()) is not None:
            return [*([Lines(rest)] if rest else []), End(b"", self._truncated)]
        closing = [Lines(BLANK)] if self._within_long else []
        return [*closing, Broken(reason, self._next_event, reported)]

    @property
    def _is_alone(self) -> bool:
        """Nobody else could go on: what the engine says of its failure is the client's."""
        progress = self._progress
        return not (progress.can_go_on or progress.is_behind or progress.rest() is not None)

    # --- events ---

    def _let_out(self) -> list[Event]:
        """Hand out what is held where it is too long, but for a byte that may begin its end."""
        if len(self._held) <= LONGEST_EVENT_BYTES:
            return []
        part = bytes(self._held[:-1])
        del self._held[:-1]
        self._within_long = True
        self._progress.lose()
        if self._progress.is_behind:
            return self._break("diverged")
        return [self._lines([self._before(), part])]

    def _take(self, parts: list[bytes]) -> list[Event]:
        events: list[Event] = []
        shown: list[bytes] = []
        end: Ending | None = None
        if self._within_long and parts:
            self._within_long = False
            shown.append(parts.pop(0))
        for part in parts:
            if (taken := self._taken(part)) is not None:
                shown.append(taken)
                continue
            dear = len(part) > LARGE_BYTES and part.count(b"\n") > _MOST_LINES
            end = ("not_events", None) if dear else self._follow(part, shown, events)
            if end is not None:
                break
        if any(shown):
            events.append(self._lines(shown))
        return events if end is None else events + self._break(*end)

    def _taken(self, part: bytes) -> bytes | None:
        if self._unfollowed:
            plain = self._begun and part.startswith(_OBJECT) and not _TELLING.search(part)
            return part if plain else None
        alike = self._progress.alike
        return alike.take(part) if alike is not None else None

    def _lines(self, shown: list[bytes]) -> Lines:
        self._begun = True
        return Lines(b"".join(shown))

    def _follow(self, part: bytes, shown: list[bytes], events: list[Event]) -> Ending | None:
        """Add what the client gets of an event to `shown`; why the stream has to end, if it has."""
        answer = sse.parse_object(part[len(DATA) :]) if part.startswith(_OBJECT) else None
        if answer is None:
            text = sse.data_of(part)
            answer = sse.parse_object(text) if b"{" in text else None
            if answer is None:
                return self._follow_other(part, text, shown)
        reported = sse.reported_error(answer) if _ERROR in part else None
        if reported is not None:
            if not (self._begun or any(shown)) or not self._is_alone:
                return "error_event", reported
            if not self._error_reported:
                self._error_reported = True
                if any(shown):
                    events.append(self._lines(shown))
                    shown.clear()
                events.append(Broken("error_event", self._next_event, reported))
        if self._count(answer, events) and self._goes_on:
            return "aborted", None
        if self._opening and not self._begun and sse.name_of(part) in self._opening:
            self._waiting += part  # there are few, and each is bounded
            return None
        progress = self._progress
        if progress.states_no_ids:
            self._unfollowed = not progress.is_behind
            part = progress.without_ids(part, answer)
        else:
            try:
                part = progress.take(part, answer)
                diverged: bool = progress.is_behind and progress.states_no_ids
            except Diverged:
                progress.lose()
                diverged = True
            if diverged:
                return "diverged", None
        shown.append(self._before() + part if self._waiting else part)
        return None

    def _follow_other(self, part: bytes, text: bytes, shown: list[bytes]) -> Ending | None:
        """Follow what is no object: the end, a comment, or nobody knows what."""
        progress, has_begun = self._progress, self._begun or bool(shown)
        if text.strip() == b"[DONE]":
            if self._goes_on:
                part, progress.is_done = DONE, True
        elif not has_begun and (text or not sse.is_event(part)):
            return "not_events", None
        elif not has_begun and len(self._waiting) + len(part) <= MOST_WAITING_BYTES:
            self._waiting += part
            return None
        elif b"{" in text:
            progress.lose()
            if progress.states_no_ids and progress.is_behind:
                return "diverged", None
        shown.append(self._before() + part)
        return None

    def _before(self) -> bytes:
        waiting = bytes(self._waiting)
        self._waiting.clear()
        return waiting

    def _count(self, answer: dict[str, Any], events: list[Event]) -> bool:
        """Count the tokens of an event; whether the engine gives the request up in it, as when it
        shuts down."""
        reasons = reasons_of(answer)
        self._truncated |= "length" in reasons
        if "type" in answer:
            self._count_typed(answer)
            events += usage_of(answer)
        elif answer.get("usage") is not None:
            events += usage_of(answer)
        return "abort" in reasons

    def _count_typed(self, answer: dict[str, Any]) -> None:
        number = answer.get("sequence_number")
        if isinstance(number, int):
            self._next_event = number + 1
        if not self.response_id:
            self.response_id = response_id_of(answer.get("response"))
        self._truncated |= is_cut(answer)
