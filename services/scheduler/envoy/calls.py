"""gRPC calls on an HTTP/2 connection: their messages, and how they end."""

import asyncio
from collections import deque
from collections.abc import Iterator
from struct import Struct
from typing import Protocol

_MESSAGE = Struct(">BI")  # whether it is compressed, and its length
LONGEST_MESSAGE_BYTES = 4 << 20
"""gRPC's default limit. Gateways send a body in parts."""
_HEAD = [(":status", "200"), ("content-type", "application/grpc")]

OK, UNKNOWN, NOT_FOUND, RESOURCE_EXHAUSTED, UNIMPLEMENTED = 0, 2, 5, 8, 12
UNAUTHENTICATED = 16
"""Status codes of gRPC."""


class CallHandler(Protocol):
    """What answers one call."""

    def receive(self, message: bytes) -> None:
        """Take the next message."""

    def half_close(self) -> None:
        """The caller sends no more messages."""

    def lose(self) -> None:
        """The caller has left, or its connection has; nothing can be sent any more."""


class CallCarrier(Protocol):
    """The connection, as far as a call needs it."""

    def send_headers(
        self, stream: "CallStream", headers: list[tuple[str, str]], *, ends: bool
    ) -> None: ...

    def send_waiting(self, stream: "CallStream") -> None: ...

    def earn(self) -> None: ...


class CallStream:
    """One call as its handler sees it: messages go out, until it is ended."""

    __slots__ = (
        "_connection",
        "_sent",
        "begun",
        "call",
        "closed",
        "half_closed",
        "id",
        "incoming",
        "outgoing",
    )

    def __init__(self, connection: CallCarrier, stream_id: int) -> None:
        self._connection = connection
        self._sent: asyncio.Future[None] | None = None
        self.begun = False
        self.id = stream_id
        self.call: CallHandler | None = None
        self.closed = False
        self.half_closed = False
        """The peer sends no more."""
        self.incoming = bytearray()
        """Received bytes that are not yet a whole message."""
        self.outgoing: deque[memoryview] = deque()
        """To be sent when the windows allow it."""

    def send(self, *messages: bytes) -> None:
        if self.closed:
            return
        if not self.begun:
            self.begun = True
            self._connection.send_headers(self, _HEAD, ends=False)
        data = b"".join([part for m in messages for part in (_MESSAGE.pack(0, len(m)), m)])
        self.outgoing.append(memoryview(data))
        self._connection.send_waiting(self)

    async def sent(self) -> None:
        """Return when nothing waits to be sent any more, or the call has ended."""
        if self.outgoing:
            self._sent = asyncio.get_running_loop().create_future()
            await self._sent

    def tell_sent(self) -> None:
        """Wake `sent`: nothing waits to be sent."""
        if self._sent is not None and not self._sent.done():
            self._sent.set_result(None)

    def end(self, status: int = OK, text: str = "") -> None:
        """End the call with a gRPC status. Data that still waits for the windows is dropped: a call
        is ended when its caller is done with it, or on an error."""
        if self.closed:
            return
        if self.begun and status == OK:
            self._connection.earn()
        fields = [("grpc-status", str(status)), ("grpc-message", text)][: 2 if text else 1]
        self._connection.send_headers(self, fields if self.begun else _HEAD + fields, ends=True)

    def messages(self) -> Iterator[bytes]:
        """Yield each message that has come whole, once. A compressed or too long one ends the
        call."""
        incoming, at = self.incoming, 0
        while len(incoming) - at >= _MESSAGE.size and not self.closed:
            compressed, size = _MESSAGE.unpack_from(incoming, at)
            if compressed:
                self.end(UNIMPLEMENTED, "compressed messages are not understood")
            elif size > LONGEST_MESSAGE_BYTES:
                self.end(RESOURCE_EXHAUSTED, f"a message of {size} bytes")
            elif len(incoming) < (end := at + _MESSAGE.size + size):
                break
            else:
                at = end
                yield bytes(memoryview(incoming)[end - size : end])
        if not self.closed:
            del incoming[:at]
