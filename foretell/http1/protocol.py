"""The server's side of one connection, without I/O and without a clock.

Its caller gives it what arrives (`receive`), takes the events that follow (`next_event`) and tells
it when a request has been answered (`answered`). What stands behind a request waits until then,
unread.
"""

from enum import Enum, auto

from foretell.http1.body import Body, Chunked, Counted
from foretell.http1.bounds import BOUNDS, Bounds, RemoteProtocolError
from foretell.http1.head import HeadParser, RequestHead


class LocalProtocolError(Exception):
    """We did what is not due in this state: a defect of ours."""


class State(Enum):
    """Where a connection stands in the cycle of a request and its answer."""

    IDLE = auto()
    """No request is in progress; a part of a head may have come."""
    RECEIVING = auto()
    """A head has come. Its body is on its way, and it may be answered before that has ended."""
    ANSWERING = auto()
    """The request is whole. What follows it waits, unread, until it has been answered."""
    DRAINING = auto()
    """The request has been answered, and the rest of its body comes for nothing."""
    FAILED = auto()
    """The body turned out to be none. The request is still to be answered; nothing more is read."""
    DONE = auto()
    """Request and answer are whole."""
    CLOSING = auto()
    """Nothing more is said or heard."""

    __hash__ = object.__hash__  # that of Enum takes longer than all the rest of a transition


class Step(Enum):
    HEAD = auto()
    BODY_END = auto()
    ANSWER_END = auto()
    MALFORMED = auto()
    NEXT = auto()
    CLOSE = auto()

    __hash__ = object.__hash__


TRANSITIONS: dict[State, dict[Step, State]] = {
    State.IDLE: {
        Step.HEAD: State.RECEIVING,
        Step.MALFORMED: State.CLOSING,
        Step.CLOSE: State.CLOSING,
    },
    State.RECEIVING: {
        Step.BODY_END: State.ANSWERING,
        Step.ANSWER_END: State.DRAINING,
        Step.MALFORMED: State.FAILED,
    },
    State.ANSWERING: {Step.ANSWER_END: State.DONE},
    State.DRAINING: {Step.BODY_END: State.DONE, Step.MALFORMED: State.CLOSING},
    State.FAILED: {Step.ANSWER_END: State.CLOSING},
    State.DONE: {Step.NEXT: State.IDLE, Step.CLOSE: State.CLOSING},
    State.CLOSING: {},
}


_IDLE, _RECEIVING, _DRAINING = State.IDLE, State.RECEIVING, State.DRAINING
_FAILED, _DONE, _CLOSING = State.FAILED, State.DONE, State.CLOSING
_HEAD, _BODY_END, _ANSWER_END = Step.HEAD, Step.BODY_END, Step.ANSWER_END
_NEXT, _CLOSE = Step.NEXT, Step.CLOSE
"""Names of their own: to look up the member of an enumeration takes as long as a call."""


class ServerProtocol:
    """One connection. The events of a request are its head, parts of its body, and b"": its end."""

    __slots__ = (
        *("state", "keep_alive"),
        *("_bounds", "_head", "_body", "_data", "_at", "_later"),
    )

    def __init__(self, bounds: Bounds = BOUNDS) -> None:
        self.state = State.IDLE
        self.keep_alive = False
        """Another request may follow the one in progress."""
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
        """What has come and was not read."""
        return len(self._data) - self._at + len(self._later)

    @property
    def is_full(self) -> bool:
        """So much is held that no more should be received."""
        held_bytes = len(self._data) - self._at + len(self._later)
        return held_bytes > self._bounds.ahead_bytes

    def receive(self, data: bytes) -> bool:
        """Take what has arrived; False: it was dropped."""
        if self.state is _CLOSING or self.state is _FAILED:
            return False
        if self._at == len(self._data):
            self._data, self._at = data, 0
        else:
            self._later += data
        return True

    def next_event(self) -> RequestHead | bytes | None:
        """What comes next; None: nothing, until more arrives or the request has been answered. A
        head that has its `content` already is a whole request: nothing follows it. Raises
        `RemoteProtocolError` for what is no HTTP, after which nothing is read any more: the request
        in progress, if there is one that was not answered, is still to be answered."""
        try:
            while self.state is _IDLE and self._has_data():
                self._at = self._head.feed(self._data, self._at)
                if (head := self._head.head()) is not None:
                    return self._begin(head)
            if self.state is _RECEIVING or self.state is _DRAINING:
                return self._next_part()
        except RemoteProtocolError:
            self._go(Step.MALFORMED)
            self._forget()
            raise
        return None

    def _has_data(self) -> bool:
        """Something was not read; what came later is next where all before it was."""
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

    def _go(self, step: Step) -> None:
        """To the state that follows; raises `LocalProtocolError` where the step is not due."""
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
