"""The lines of a stream up to its first event that tells something: until then it can be repeated.

Each line is read once, however they come.
"""

from collections.abc import Sequence

from foretell.services.scheduler.relay.reported import Reported, reported_error
from foretell.services.scheduler.relay.sse import parse_object

MOST_BYTES = 1 << 20
"""What is held of the beginning; beyond that it goes to the client."""
_FIELDS = (b"data", b"event", b"id", b"retry")
"""The fields of server-sent events; a line that begins with a colon is a comment."""


class NoBeginning(Exception):
    """The stream begins with an error, or with something that is no event of JSON."""

    def __init__(self, reason: str, reported: Reported | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        """A label for metrics."""
        self.reported = reported
        """What the engine says of its error."""


class Beginning:
    """Holds comments, and the events that come before there is a token, for the next one."""

    def __init__(self, opening: Sequence[bytes] = ()) -> None:
        """`opening` names events that come before there is a token."""
        self.lines = bytearray()
        """All that has come."""
        self._opening = frozenset(opening)
        self._name = b""
        """The name of the event under way."""
        self._data: list[bytes] = []
        """Its lines of data, as long as they are no JSON."""

    def take(self, lines: bytes) -> bool:
        """More lines have come; whether the first event that tells something is among them.

        Raises `NoBeginning`.
        """
        self.lines += lines
        begun = False
        for line in lines.split(b"\n"):
            begun = begun or self._read(line.rstrip(b"\r"))
        return begun or len(self.lines) > MOST_BYTES

    def end(self) -> None:
        """The stream is over; raises `NoBeginning`."""
        self._read(b"")
        raise NoBeginning("empty_stream")

    def _read(self, line: bytes) -> bool:
        """Whether the event that the line belongs to tells something."""
        if not line:
            self._name = b""
            return bool(self._data) and self._judge(b"\n".join(self._data), whole=True)
        if not is_event(line):
            raise NoBeginning("not_events")
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            self._name = value
        if field != b"data" or self._name in self._opening:
            return False
        self._data.append(value)
        return len(self._data) == 1 and self._judge(value, whole=False)

    def _judge(self, data: bytes, *, whole: bool) -> bool:
        """Whether the data tells something; not `whole`: it may go on in the next line."""
        if data.strip() == b"[DONE]":
            return True
        answer = parse_object(data)
        if answer is None and whole:
            raise NoBeginning("not_events")
        if answer is not None and (reported := reported_error(answer)) is not None:
            raise NoBeginning("error_event", reported)
        return answer is not None


def is_event(lines: bytes) -> bool:
    """Whether lines without data can belong to server-sent events."""
    fields = (line.partition(b":")[0].rstrip(b"\r") for line in lines.split(b"\n"))
    return all(not field or field in _FIELDS for field in fields)
