"""The server's side of one connection, without I/O and without a clock.

The caller passes in received bytes (`receive`), takes the resulting events (`next_event`) and
reports when a request has been answered (`answered`). Bytes behind a request stay unparsed until
then.
"""

from enum import Enum, auto

from foretell.http1.body import Body, Chunked, Counted
from foretell.http1.bounds import BOUNDS, Bounds, RemoteProtocolError
from foretell.http1.head import HeadParser, RequestHead


class LocalProtocolError(Exception):
    """A step that the state does not allow: a bug in the server."""


class ConnectionState(Enum):
    """Where a connection stands in the cycle of a request and its answer."""

    IDLE = auto()
    """No request is in progress; part of a head may have come."""
    RECEIVING = auto()
    """A head has come, and its body is arriving. The answer may end before the body does."""
    ANSWERING = auto()
    """The request is complete. Bytes behind it stay unparsed until it has been answered."""
    DRAINING = auto()
    """The request has been answered; the rest of its body is no longer needed."""
    FAILED = auto()
    """The body is malformed. The request is still to be answered; nothing more is read."""
    DONE = auto()
    """Request and answer are complete."""
    CLOSING = auto()
    """Nothing more is sent or read."""

    __hash__ = object.__hash__  # Enum's takes longer than the rest of a transition


class ProtocolStep(Enum):
    HEAD = auto()
    BODY_END = auto()
    ANSWER_END = auto()
    MALFORMED = auto()
    NEXT = auto()
    CLOSE = auto()

    __hash__ = object.__hash__


TRANSITIONS: dict[ConnectionState, dict[ProtocolStep, ConnectionState]] = {
    ConnectionState.IDLE: {
        ProtocolStep.HEAD: ConnectionState.RECEIVING,
        ProtocolStep.MALFORMED: ConnectionState.CLOSING,
        ProtocolStep.CLOSE: ConnectionState.CLOSING,
    },
    ConnectionState.RECEIVING: {
        ProtocolStep.BODY_END: ConnectionState.ANSWERING,
        ProtocolStep.ANSWER_END: ConnectionState.DRAINING,
        ProtocolStep.MALFORMED: ConnectionState.FAILED,
    },
    ConnectionState.ANSWERING: {ProtocolStep.ANSWER_END: ConnectionState.DONE},
    ConnectionState.DRAINING: {
        ProtocolStep.BODY_END: ConnectionState.DONE,
        ProtocolStep.MALFORMED: ConnectionState.CLOSING,
    },
    ConnectionState.FAILED: {ProtocolStep.ANSWER_END: ConnectionState.CLOSING},
    ConnectionState.DONE: {
        ProtocolStep.NEXT: ConnectionState.IDLE,
        ProtocolStep.CLOSE: ConnectionState.CLOSING,
    },
    ConnectionState.CLOSING: {},
}


_IDLE, _RECEIVING, _DRAINING = (
    ConnectionState.IDLE,
    ConnectionState.RECEIVING,
    ConnectionState.DRAINING,
)
_FAILED, _DONE, _CLOSING = ConnectionState.FAILED, ConnectionState.DONE, ConnectionState.CLOSING
_HEAD, _BODY_END, _ANSWER_END = ProtocolStep.HEAD, ProtocolStep.BODY_END, ProtocolStep.ANSWER_END
_NEXT, _CLOSE = ProtocolStep.NEXT, ProtocolStep.CLOSE
"""Module-level names, because looking up a member of an Enum takes as long as a call."""


class ServerProtocol:
    """One connection. A request's events are its head, parts of its body, and b"" at its end."""

    __slots__ = (
        *("state", "keep_alive"),
        *("_bounds", "_head", "_body", "_data", "_at", "_later"),
    )

    def __init__(self, bounds: Bounds = BOUNDS) -> None:
        self.state = ConnectionState.IDLE
        self.keep_alive = False
        """Whether another request may follow the one in progress."""
        self._bounds = bounds
        self._head = HeadParser(bounds)
        self._body: Body = Counted(0)
        self._data, self._at = b"", 0
        self._later = bytearray()

    @property
    def head_begun(self) -> bool:
        return self._head.begun

    @property
    def held_bytes(self) -> int:
        """Bytes received but not yet parsed."""
        return len(self._data) - self._at + len(self._later)

    @property
    def is_full(self) -> bool:
        """Whether so much is held that reading should pause."""
        held_bytes = len(self._data) - self._at + len(self._later)
        return held_bytes > self._bounds.ahead_bytes

    def receive(self, data: bytes) -> bool:
        """Take received bytes; return False if they were dropped."""
        if self.state is _CLOSING or self.state is _FAILED:
            return False
        if self._at == len(self._data):
            self._data, self._at = data, 0
        else:
            self._later += data
        return True

    def next_event(self) -> RequestHead | bytes | None:
        """Return the next event; None until more bytes arrive or the request has been answered. A
        head with `content` is a whole request: no events follow it. Raises `RemoteProtocolError`
        for invalid HTTP. After that nothing more is read, but a request in progress that was not
        answered is still to be answered."""
        try:
            while self.state is _IDLE and self._has_data():
                self._at = self._head.feed(self._data, self._at)
                if (head := self._head.head()) is not None:
                    return self._begin(head)
            if self.state is _RECEIVING or self.state is _DRAINING:
                return self._next_part()
        except RemoteProtocolError:
            self._go(ProtocolStep.MALFORMED)
            self._forget()
            raise
        return None

    def _has_data(self) -> bool:
        """Whether unparsed bytes are left. Goes on to later bytes once earlier ones are parsed."""
        if self._at < len(self._data):
            return True
        self._data, self._at = bytes(self._later), 0
        self._later.clear()
        return bool(self._data)

    def _begin(self, head: RequestHead) -> RequestHead:
        self._head = HeadParser(self._bounds)
        self.keep_alive = head.keep_alive
        self._go(_HEAD)
        length_bytes = head.length_bytes
        if length_bytes is None:
            self._body = Chunked(self._bounds)
        elif length_bytes <= len(self._data) - self._at:
            end = self._at + length_bytes
            head.content, self._at = self._data[self._at : end], end
            self._go(_BODY_END)
        else:
            self._body = Counted(length_bytes)
        return head

    def _next_part(self) -> bytes | None:
        while not self._body.done:
            if not self._has_data():
                return None
            part, self._at = self._body.take(self._data, self._at)
            if part:
                return part
        self._go(_BODY_END)
        return b""

    def answered(self) -> None:
        self._go(_ANSWER_END)

    def close(self) -> None:
        self._go(_CLOSE)

    def _go(self, step: ProtocolStep) -> None:
        """Go to the next state; raises `LocalProtocolError` if the step is not allowed."""
        try:
            state = TRANSITIONS[self.state][step]
        except KeyError:
            raise LocalProtocolError(f"{step.name} in the state {self.state.name}") from None
        if state is _DONE:
            state = TRANSITIONS[state][_NEXT if self.keep_alive else _CLOSE]
        self.state = state
        if state is _CLOSING:
            self._forget()

    def _forget(self) -> None:
        self._data, self._at = b"", 0
        self._later.clear()
