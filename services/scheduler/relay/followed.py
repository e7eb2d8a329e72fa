"""A stream that is followed, so that another engine could go on with it, without I/O."""

from typing import Any

from services.scheduler.relay.choice import Diverged
from services.scheduler.relay.continuation import DONE, Progress
from services.scheduler.relay.framing import (
    DATA,
    ERROR,
    OBJECT,
    End,
    Event,
    Lines,
    StreamFraming,
    begins_with_event,
    parse_object,
)

LONGEST_EVENT_BYTES = 4 << 20
"""A longer event is handed out as it comes, and nobody can go on with its stream."""
_BLANK = b"\n\n"
_RETURNS = b"\r\n"


class FollowedFraming(StreamFraming):
    """A stream of completions or chats that `Progress` is told of, event by event.

    The first event that tells of an error ends it, and is not handed out.
    """

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress
        self._is_followed = True

    def feed(self, data: bytes) -> list[Event]:
        """Take what has arrived, at least one byte."""
        assert data
        assert not self.ended
        if not self._is_followed:
            return super().feed(data)
        if self._begun and not self._held and data.find(_BLANK) == len(data) - len(_BLANK):
            found = self._progress.take_alike(data)
            if found is not None:
                shown, tokens = found
                self._tokens_out += tokens
                return [Lines(shown)]
        if self._held:
            # What is held was looked at before, but for its last byte.
            if self._begun and _BLANK not in self._held[-1:] + data:
                self._held += data
                if len(self._held) <= LONGEST_EVENT_BYTES:
                    return []
                data = b""
            data = bytes(self._held) + data
            self._held.clear()
        at = data.rfind(_BLANK)
        end = at + len(_BLANK) if at >= 0 else 0
        rest = data[end:]
        if len(rest) > LONGEST_EVENT_BYTES or (not self._begun and _RETURNS in data):
            return self._unfollow(data)
        self._held += rest
        return self._take(data[:end])

    def feed_end(self) -> list[Event]:
        """The engine has ended its stream as HTTP wants it."""
        assert not self.ended
        events: list[Event] = []
        if self._is_followed and self._held:
            rest = bytes(self._held)
            self._held.clear()
            is_object = rest.startswith(OBJECT)
            events = self._take(rest.rstrip(b"\n") + _BLANK) if is_object else self._unfollow(rest)
        if self.ended:
            return events
        if self._progress.is_behind:
            return [*events, *self.feed_break("diverged")]
        if self._begun and self._progress.lacks_end:
            return [*events, *self.feed_break("ended_early")]
        return [*events, *super().feed_end()]

    def feed_break(self, reason: str) -> list[Event]:
        """The stream broke off for `reason`; what is held of an event is dropped."""
        rest = self._progress.rest()
        if rest is None:
            return super().feed_break(reason)
        self.ended = True
        return [*([Lines(rest)] if rest else []), End(b"", self._truncated)]

    def _unfollow(self, data: bytes) -> list[Event]:
        """What came last, and all that comes, is not followed."""
        self._is_followed = False
        self._progress.lose()
        if self._progress.is_behind:
            return self.feed_break("diverged")
        return super().feed(data) if data else []

    def _take(self, data: bytes) -> list[Event]:
        """Whole events have come."""
        events: list[Event] = []
        shown: list[bytes] = []
        reason = ""
        one = data.find(_BLANK) == len(data) - len(_BLANK)  # as mostly
        at = 0
        for part in (data,) if one else _split(data):
            at += len(part)
            reason = self._follow(part, shown, events)
            if reason or self._progress.states_no_ids:
                break
        lines = b"".join(shown)
        if lines:
            self._begun = True
            events.append(Lines(lines))
        if reason:
            return [*events, *self.feed_break(reason)]
        if self._progress.states_no_ids and data:
            rest = data[at:] + bytes(self._held)
            self._held.clear()
            events += self._unfollow(rest)
        return events

    def _follow(self, part: bytes, shown: list[bytes], events: list[Event]) -> str:
        """Add what the client gets of an event to `shown`; why the stream has to end, if it has."""
        if not (self._begun or shown or begins_with_event(part)):
            return "not_events"
        if part.startswith(ERROR):
            return "error_event"
        answer = parse_object(part[len(DATA) :]) if part.startswith(OBJECT) else None
        if answer is None:
            if part == DONE:
                self._progress.is_done = True
            elif DATA + b"{" in part:
                self._progress.lose()
            shown.append(part)
            return ""
        if _is_aborted(answer):
            return "aborted"
        self._read_object(answer, events)
        try:
            shown.append(self._progress.take(part, answer))
        except Diverged:
            self._progress.lose()
            return "diverged"
        return ""


def _split(data: bytes) -> list[bytes]:
    return [part + _BLANK for part in data.split(_BLANK)[:-1]]


def _is_aborted(answer: dict[str, Any]) -> bool:
    """The engine gives the request up, as when it shuts down."""
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return isinstance(first, dict) and first.get("finish_reason") == "abort"
