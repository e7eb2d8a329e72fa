"""A stream that is followed, so that another engine could go on with it, without I/O."""

from typing import Any

from foretell.services.scheduler.relay.beginning import MOST_BYTES, is_event
from foretell.services.scheduler.relay.choice import Diverged
from foretell.services.scheduler.relay.continuation import (
    DONE,
    Progress,
    as_vllm_writes,
    take_ids_out,
)
from foretell.services.scheduler.relay.framing import (
    OBJECT,
    Broken,
    End,
    Event,
    Lines,
    StreamFraming,
)
from foretell.services.scheduler.relay.reported import Reported, reported_error
from foretell.services.scheduler.relay.sse import (
    BLANK,
    DATA,
    LineEnds,
    data_of,
    parse_object,
    written,
)

LONGEST_EVENT_BYTES = 4 << 20
"""A longer event is handed out as it comes, and nobody can go on with its stream."""


class FollowedFraming(StreamFraming):
    """A stream of completions or chats that `Progress` is told of, event by event.

    The first event that tells of an error ends it, and is not handed out where another engine could
    go on.
    """

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress
        self._is_followed = True
        self._comments = b""
        """Before the first event: nothing is handed out of them alone."""

    def feed(self, data: bytes) -> list[Event]:
        """Take what has arrived, at least one byte."""
        assert data
        assert not self.ended
        if not self._is_followed:
            return super().feed(data)
        if self._ends is not None or b"\r" in data:  # no text has it: it would be escaped
            self._ends = self._ends or LineEnds()
            data = self._ends.unix(data)
        if self._held:
            # What is held was looked at before, but for its last byte.
            if self._beginning is None and BLANK not in self._held[-1:] + data:
                self._held += data
                if len(self._held) <= LONGEST_EVENT_BYTES:
                    return []
                data = b""
            data = bytes(self._held) + data
            self._held.clear()
        at = data.rfind(BLANK)
        end = at + len(BLANK) if at >= 0 else 0
        rest = data[end:]
        if len(rest) > LONGEST_EVENT_BYTES:
            return self._unfollow(data)
        self._held += rest
        return self._take(data[:end])

    def pass_on(self, data: bytes) -> bytes | None:
        """See `Framing`."""
        alike = self._progress.alike
        if alike is None or self._held or self._ends is not None:
            return None
        return alike.take(data) if data.find(BLANK) == len(data) - len(BLANK) else None

    def feed_end(self) -> list[Event]:
        """The engine has ended its stream as HTTP wants it."""
        assert not self.ended
        events: list[Event] = []
        if self._is_followed and self._held:
            rest = bytes(self._held)
            self._held.clear()
            is_object = parse_object(data_of(rest)) is not None
            events = self._take(rest.rstrip(b"\n") + BLANK) if is_object else self._unfollow(rest)
        if self.ended:
            return events
        if self._progress.is_behind:
            return [*events, *self.feed_break("diverged")]
        if self._beginning is None and self._progress.lacks_end:
            return [*events, *self.feed_break("ended_early")]
        ending = super().feed_end()
        for each in ending:
            shown = End(self._without_ids(each.data), each.truncated) if type(each) is End else each
            events.append(shown)
        return events

    def _broken(self, reason: str, reported: Reported | None = None) -> Broken:
        tokens = self._tokens_out + self._progress.alike_tokens
        return Broken(reason, tokens, self._exact, self._next_event, reported)

    def feed_break(self, reason: str) -> list[Event]:
        """The stream broke off for `reason`; what is held of an event is dropped."""
        return self._break_followed(reason)

    def _break_followed(self, reason: str, reported: Reported | None = None) -> list[Event]:
        rest = self._progress.rest()
        if rest is None:
            return self._break(reason, reported)
        self.ended = True
        return [*([Lines(rest)] if rest else []), End(b"", self._truncated)]

    def _unfollow(self, data: bytes) -> list[Event]:
        """What came last, and all that comes, is not followed."""
        self._is_followed = False
        self._progress.lose()
        if self._progress.is_behind:
            return self.feed_break("diverged")
        return super().feed(data) if data else []

    def _hand_out(self, lines: bytes) -> list[Event]:
        """Lines of a stream that is not followed, without ids that the client did not ask for."""
        return [
            Lines(self._without_ids(each.data)) if type(each) is Lines else each
            for each in super()._hand_out(lines)
        ]

    def _without_ids(self, lines: bytes) -> bytes:
        if self._progress.ids_shown or b"token_ids" not in lines:
            return lines
        shown = []
        for line in lines.split(b"\n"):
            answer = parse_object(line[5:]) if line.startswith(b"data:") else None
            has_ids = answer is not None and take_ids_out(answer)
            shown.append(written(answer).rstrip(b"\n") if answer and has_ids else line)
        return b"\n".join(shown)

    def _take(self, data: bytes) -> list[Event]:
        """Whole events have come."""
        events: list[Event] = []
        shown: list[bytes] = []
        end: tuple[str, Reported | None] | None = None
        one = data.find(BLANK) == len(data) - len(BLANK)  # as mostly
        at = 0
        for part in (data,) if one else _split(data):
            alike = self._progress.alike
            if alike is not None and (taken := alike.take(part)) is not None:
                shown.append(taken)
                at += len(part)
                continue
            end = self._follow(part, shown, events)
            if end is None and self._progress.states_no_ids and self._progress.is_behind:
                end = "diverged", None
            if end:
                break
            at += len(part)
        lines = b"".join(shown)
        if lines:
            self._beginning = None
            events.append(Lines(lines))
        if not end:
            return events
        if self._beginning is None and end[1] is not None and self._is_alone:
            rest = data[at:] + bytes(self._held)
            self._held.clear()
            return [*events, *self._unfollow(rest)]
        return [*events, *self._break_followed(*end)]

    @property
    def _is_alone(self) -> bool:
        """Nobody else could go on: what the engine says of its failure is the client's."""
        progress = self._progress
        return not progress.can_go_on and not progress.is_behind and progress.rest() is None

    def _follow(
        self, part: bytes, shown: list[bytes], events: list[Event]
    ) -> tuple[str, Reported | None] | None:
        """Add what the client gets of an event to `shown`; why the stream has to end, if it has."""
        answer = parse_object(part[len(DATA) :]) if part.startswith(OBJECT) else None
        if answer is None:
            text = data_of(part)
            answer = parse_object(text) if b"{" in text else None
            if answer is None:
                return self._follow_other(part, text, shown)
            part = written(answer, part)
        reported = reported_error(answer)
        if reported is not None:
            return "error_event", reported
        if _is_aborted(answer):
            return "aborted", None
        self._read_object(answer, events)
        try:
            shown.append(self._before() + self._progress.take(as_vllm_writes(part, answer), answer))
        except Diverged:
            self._progress.lose()
            return "diverged", None
        return None

    def _follow_other(
        self, part: bytes, text: bytes, shown: list[bytes]
    ) -> tuple[str, Reported | None] | None:
        """Follow what is no object: the end, a comment, or nobody knows what."""
        has_begun = self._beginning is None or bool(shown)
        if text.strip() == b"[DONE]":
            part, self._progress.is_done = DONE, True
        elif not has_begun and (text or not is_event(part)):
            return "not_events", None
        elif not has_begun and len(self._comments) + len(part) <= MOST_BYTES:
            self._comments += part
            return None
        elif b"{" in text:
            self._progress.lose()
        shown.append(self._before() + part)
        return None

    def _before(self) -> bytes:
        """What has waited for the first event."""
        comments, self._comments = self._comments, b""
        return comments


def _split(data: bytes) -> list[bytes]:
    return [part + BLANK for part in data.split(BLANK)[:-1]]


def _is_aborted(answer: dict[str, Any]) -> bool:
    """The engine gives the request up, as when it shuts down."""
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return isinstance(first, dict) and first.get("finish_reason") == "abort"
