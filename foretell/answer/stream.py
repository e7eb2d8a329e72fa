"""A stream of server-sent events without I/O: bytes in, whole events out.

If another engine could continue the stream, `Progress` follows each event.
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
"""A longer event is passed on in parts and not parsed, and its stream cannot be continued."""
MOST_WAITING_BYTES = 1 << 20
"""The most bytes held before the first event with content; beyond that they are passed on."""
_MOST_LINES = 10_000
"""The most lines of a long event, since each takes time."""
_OBJECT = DATA + b"{"
_ERROR = b'"error"'
"""Is in every event that reports an error, and in no text, because its quotes are escaped."""
_TELLING = re.compile(
    rb'"(?:error|finish_reason|prompt_token_ids|token_ids|type|usage)"(?!:null[,}])'
)
"""Matches in every event that has more than a text."""

Ending = tuple[str, sse.Reported | None]
"""Why a stream has to end, and the engine's own report of it."""


class StreamFraming:
    """Passes on whole events only, so that the scheduler can always append one of its own.

    Line ends become LF. A stream is `Broken` before anything is passed on, so that the request can
    be retried, if its first event is an error, if it does not begin with server-sent events of
    JSON, or if it ends without any. Later, if another engine could continue, the first event that
    reports an error ends the stream and is not passed on.
    """

    def __init__(self, progress: Progress | None = None, opening: Sequence[bytes] = ()) -> None:
        """`progress`: None if no engine can continue. `opening`: the names of events that come
        before the first token; they are held until another event comes."""
        self.ended = False
        self.response_id = ""
        self._progress = progress or nothing_followed()
        self._goes_on = progress is not None
        self._opening = frozenset(opening)
        self._begun = False
        self._waiting = bytearray()
        """Held until the first event with content."""
        self._held = bytearray()
        """The beginning of an incomplete event."""
        self._ends: sse.LineEnds | None = None
        self._within_long = False
        """`_held` continues an event that was too long, whose beginning was passed on."""
        self._error_reported = False
        self._truncated = False
        self._unfollowed = progress is None
        """Events go to the client whatever they contain; some are read for what they state."""
        self._next_event = 0

    def feed(self, data: bytes) -> list[Event]:
        assert data
        assert not self.ended
        if self._ends is not None or b"\r" in data:  # a line end, as JSON escapes CR
            self._ends = self._ends or sse.LineEnds()
            data = self._ends.unix(data)
        if self._held:
            # A new BLANK can begin with the last held byte; the others were searched before.
            if BLANK not in self._held[-1:] + data:
                self._held += data
                return self._let_out()
            data = bytes(self._held) + data
            self._held.clear()
        if data.endswith(BLANK) and data.find(BLANK) == len(data) - len(BLANK):  # as usual
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
        """Feed the regular end of the HTTP response."""
        assert not self.ended
        events: list[Event] = []
        if rest := bytes(self._held).rstrip(b"\n"):
            self._held.clear()
            events = self._take([rest + BLANK])
            text = sse.data_of(rest)
            is_whole = text.strip() == b"[DONE]" or sse.parse_object(text) is not None
            if not is_whole and events and type(events[-1]) is Lines:
                events[-1].data = events[-1].data.removesuffix(BLANK)  # it stays incomplete
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
        """Feed the loss of the stream for `reason`; an incomplete event is dropped."""
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
        """Whether no other engine could continue, so that the client gets the engine's error."""
        progress = self._progress
        return not (progress.can_go_on or progress.is_behind or progress.rest() is not None)

    # --- events ---

    def _let_out(self) -> list[Event]:
        """Pass on what is held if it is too long, except a last byte that may begin its end."""
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
        """Add what the client gets of an event to `shown`. Why the stream has to end, or None."""
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
        """`_follow` for an event without an object: the end, a comment, or something unknown."""
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
        """Note what an event states of the answer. Whether the engine aborts the request in it, as
        when it shuts down."""
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
