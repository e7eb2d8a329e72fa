"""The server's side of one connection, without I/O and without a clock.

Its caller gives it what arrives (`receive`), takes the events that follow (`next_event`) and tells
it when a request has been answered (`answered`). What stands behind a request waits until then,
unread.
"""

from typing import Final

from services.scheduler.http1.body import Body, Chunked, Counted
from services.scheduler.http1.bounds import BOUNDS, Bounds
from services.scheduler.http1.errors import RemoteProtocolError
from services.scheduler.http1.head import HeadParser, RequestHead
from services.scheduler.http1.states import State, Step, after


class EndOfBody:
    """The request is whole."""


END: Final = EndOfBody()


class ServerProtocol:
    """One connection. The events of a request are its head, parts of its body, and `END`."""

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
        """What came last, and how much of it has been read."""
        self._later = bytearray()
        """What came after that."""

    @property
    def head_begun(self) -> bool:
        """A part of the next request's head was read."""
        return self._head.begun

    @property
    def held_bytes(self) -> int:
        """What has come and was not read."""
        return len(self._data) - self._at + len(self._later)

    @property
    def is_full(self) -> bool:
        """So much is held that no more should be received."""
        return self.held_bytes > self._bounds.ahead_bytes

    @property
    def is_deaf(self) -> bool:
        """What comes is dropped."""
        return self.state is State.CLOSING or self.state is State.FAILED

    def receive(self, data: bytes) -> None:
        """Take what has arrived."""
        if self.is_deaf:
            return
        if self._at == len(self._data):
            self._data, self._at = data, 0
        else:
            self._later += data

    def next_event(self) -> RequestHead | bytes | EndOfBody | None:
        """What comes next; None: nothing, until more arrives or the request has been answered.

        Raises `RemoteProtocolError` for what is no HTTP, after which nothing is read any more: the
        request in progress, if there is one that was not answered, is still to be answered.
        """
        while True:
            reads_body = self.state is State.RECEIVING or self.state is State.DRAINING
            if reads_body and self._body.done:
                self._go(Step.BODY_END)
                return END
            if self._at == len(self._data):
                if not self._later:
                    return None
                self._data, self._at = bytes(self._later), 0
                self._later.clear()
            try:
                if reads_body:
                    part, self._at = self._body.take(self._data, self._at)
                    if part:
                        return part
                elif self.state is not State.IDLE:
                    return None
                elif (head := self._read_head()) is not None:
                    return head
            except RemoteProtocolError:
                self.close() if self.state is State.IDLE else self._go(Step.MALFORMED)
                self._forget()
                raise

    def answered(self) -> None:
        """The request in progress has been answered."""
        self._go(Step.ANSWER_END)

    def close(self) -> None:
        """End an idle connection."""
        self._go(Step.CLOSE)

    def _read_head(self) -> RequestHead | None:
        self._at = self._head.feed(self._data, self._at)
        head = self._head.head()
        if head is not None:
            self._head = HeadParser(self._bounds)
            length_bytes, self.keep_alive = head.length_bytes, head.keep_alive
            self._body = Chunked(self._bounds) if length_bytes is None else Counted(length_bytes)
            self._go(Step.HEAD)
        return head

    def _go(self, step: Step) -> None:
        self.state = after(self.state, step)
        if self.state is State.DONE:
            self.state = after(self.state, Step.NEXT if self.keep_alive else Step.CLOSE)
        if self.state is State.CLOSING:
            self._forget()

    def _forget(self) -> None:
        self._data, self._at = b"", 0
        self._later.clear()
