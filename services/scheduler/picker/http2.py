"""The server's end of an HTTP/2 connection (RFC 9113) that carries gRPC calls, and no more of it.

The peer is a gateway, not the public. Frames are read and written here, because nothing that does
so in Python is as cheap (ADR 9).
"""

import asyncio
import logging
from collections.abc import Callable
from struct import Struct
from typing import Protocol, cast

from hpack.exceptions import HPACKError

from services.scheduler.picker.header_blocks import (
    LONGEST_HEADERS,
    RESPONSE,
    Decode,
    decoded_alone,
    decoding,
    trailers,
)

logger = logging.getLogger(__name__)

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAME = Struct(">HBBBI")  # the upper and the lower bytes of the length, type, flags, stream
_MESSAGE = Struct(">BI")  # gRPC: whether it is compressed, and its length
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY = 0, 1, 3, 4, 6, 7
_WINDOW_UPDATE, _CONTINUATION, _PUSH_PROMISE = 8, 9, 5
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _PRIORITY = 1, 1, 4, 8, 32
_LONGEST_FRAME = 16384  # what a peer may send, and what any peer takes
_LARGEST_WINDOW = 2**31 - 1
_DEFAULT_WINDOW = 65535
_TOP_UP = 1 << 30  # of the connection's window: half of it is left by then
# No dynamic table: a header block means the same wherever it comes, so it is decoded once.
_OWN_SETTINGS = b"".join(
    key.to_bytes(2) + value.to_bytes(4) for key, value in ((1, 0), (4, _LARGEST_WINDOW))
)

NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, FRAME_SIZE_ERROR, CANCEL = 0, 1, 3, 6, 8
COMPRESSION_ERROR = 9
OK, UNKNOWN, NOT_FOUND, RESOURCE_EXHAUSTED, UNIMPLEMENTED = 0, 2, 5, 8, 12
UNAUTHENTICATED = 16
"""Status codes of gRPC."""


class Call(Protocol):
    """What answers one call."""

    def receive(self, message: bytes) -> None:
        """Take the next message."""

    def half_close(self) -> None:
        """The caller sends no more messages."""

    def lose(self) -> None:
        """The caller has left, or its connection has; nothing can be sent any more."""


Open = Callable[["Stream", dict[str, str]], Call | None]
"""Begins the call of a stream with these request headers; None after it has ended the stream."""


class _Broken(Exception):
    """The peer broke the protocol; `code` is told to it."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class Stream:
    """One call as its handler sees it: messages go out, until it is ended."""

    __slots__ = ("_begun", "_connection", "call", "closed", "id", "incoming", "outgoing", "window")

    def __init__(self, connection: "Connection", stream_id: int, window: int) -> None:
        self._connection = connection
        self._begun = False
        self.id = stream_id
        self.call: Call | None = None
        self.closed = False
        """Nothing can be sent any more."""
        self.window = window
        """Bytes that the peer takes at the moment."""
        self.incoming = b""
        """Received, and not yet a whole message."""
        self.outgoing = memoryview(b"")
        """To be sent when the windows allow it."""

    def send(self, *messages: bytes) -> None:
        """Send messages, in one write where the peer's windows allow it."""
        if self.closed:
            return
        if not self._begun:
            self._begun = True
            self._connection.write_frame(_HEADERS, _END_HEADERS, self.id, RESPONSE)
        self._connection.write_data(
            self, b"".join([part for m in messages for part in (_MESSAGE.pack(0, len(m)), m)])
        )

    def end(self, status: int = OK, text: str = "") -> None:
        """End the call with a status of gRPC."""
        if self.closed:
            return
        self._connection.close_stream(self, trailers(status, text, whole=not self._begun))


class Connection(asyncio.Protocol):
    """One connection of a gateway, with its calls side by side."""

    def __init__(
        self, open_call: Open, longest_message: int, connections: set["Connection"]
    ) -> None:
        """`connections` holds this one while it lasts."""
        self._open = open_call
        self._longest_message = longest_message
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._decode: Decode = decoding()
        """Until the peer knows our settings, it may use a dynamic table."""
        self._streams: dict[int, Stream] = {}
        self._highest_stream = 0
        self._preface_seen = False
        self._incoming = b""
        self._headers: tuple[int, int, bytes] | None = None
        """Stream, flags and beginning of a header block that continues."""
        self._window = _DEFAULT_WINDOW
        self._stream_window = _DEFAULT_WINDOW
        self._consumed = 0
        self._waiting: dict[int, Stream] = {}
        """Streams with outgoing data, in the order in which they get the window."""
        self._outgoing: list[bytes | memoryview] = []
        self._flush_planned = False

    # What asyncio tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with our settings."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses
        self._connections.add(self)
        self.write_frame(_SETTINGS, 0, 0, _OWN_SETTINGS)
        self._write_window(_LARGEST_WINDOW - _DEFAULT_WINDOW)

    def connection_lost(self, exc: Exception | None) -> None:
        """All calls have lost their caller."""
        self._connections.discard(self)
        self._transport = None
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            self._lose(stream)

    def data_received(self, data: bytes) -> None:
        """Read all frames that are whole, then write what they gave rise to."""
        self._flush_planned = True  # whatever is written meanwhile goes out below
        try:
            self._read(self._incoming + data if self._incoming else data)
        except _Broken as broken:
            logger.warning("a gateway broke HTTP/2: %s", broken)
            self._go_away(broken.code)
        self._flush()

    def drain(self) -> None:
        """Take no new calls on this connection; those in progress go on."""
        self.write_frame(_GOAWAY, 0, 0, self._highest_stream.to_bytes(4) + NO_ERROR.to_bytes(4))

    def close(self) -> None:
        """Close the connection with all its calls."""
        if self._transport is not None:
            self._transport.close()

    # What streams write.

    def write_frame(
        self, kind: int, flags: int, stream_id: int, payload: bytes | memoryview
    ) -> None:
        """Write a frame; all that is written in one turn of the event loop goes out together."""
        size = len(payload)
        self._outgoing.append(_FRAME.pack(size >> 8, size & 255, kind, flags, stream_id))
        self._outgoing.append(payload)
        if not self._flush_planned:
            self._flush_planned = True
            self._loop.call_soon(self._flush)

    def write_data(self, stream: Stream, data: bytes) -> None:
        """Write as much as the windows allow, and the rest when they do."""
        size = len(data)
        fits = size <= _LONGEST_FRAME and size <= stream.window and size <= self._window
        if fits and not stream.outgoing:
            stream.window -= size
            self._window -= size
            self.write_frame(_DATA, 0, stream.id, data)
            return
        stream.outgoing = memoryview(bytes(stream.outgoing) + data)
        self._waiting[stream.id] = stream
        self._write_waiting()

    def close_stream(self, stream: Stream, block: bytes) -> None:
        """End a stream from this side. What still waits for the window is not sent any more.

        A call is ended when its caller is through with it, or when something is wrong.
        """
        self._forget(stream)
        self.write_frame(_HEADERS, _END_HEADERS | _END_STREAM, stream.id, block)

    # What the peer sends.

    def _read(self, data: bytes) -> None:
        at, end = 0, len(data)
        if not self._preface_seen:
            if not _PREFACE.startswith(data[: len(_PREFACE)]):
                raise _Broken(PROTOCOL_ERROR, "it does not begin as HTTP/2")
            if end < len(_PREFACE):
                self._incoming = data
                return
            self._preface_seen, at = True, len(_PREFACE)
        while end - at >= 9:
            upper, lower, kind, flags, stream_id = _FRAME.unpack_from(data, at)
            size = upper << 8 | lower
            if size > _LONGEST_FRAME:
                raise _Broken(FRAME_SIZE_ERROR, f"a frame of {size} bytes")
            if end - at < 9 + size:
                break
            payload = data[at + 9 : at + 9 + size]
            at += 9 + size
            if self._headers is not None and kind != _CONTINUATION:
                raise _Broken(PROTOCOL_ERROR, "a header block was interrupted")
            self._frame(kind, flags, stream_id & _LARGEST_WINDOW, payload)
        self._incoming = data[at:]

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == _DATA:
            self._data(flags, stream_id, payload)
        elif kind == _HEADERS:
            block = _unpadded(flags, payload)
            self._block(stream_id, flags, block[5:] if flags & _PRIORITY else block)
        elif kind == _CONTINUATION:
            if self._headers is None or self._headers[0] != stream_id:
                raise _Broken(PROTOCOL_ERROR, "a header block continues that did not begin")
            _, begun, block = self._headers
            self._headers = None
            self._block(stream_id, begun & _END_STREAM | flags & _END_HEADERS, block + payload)
        elif kind == _RST_STREAM:
            if stream := self._streams.pop(stream_id, None):
                self._lose(stream)
        elif kind == _WINDOW_UPDATE:
            self._window_update(stream_id, payload)
        elif kind == _SETTINGS and flags & _ACK:
            self._decode = decoded_alone
        elif kind == _SETTINGS:
            self._settings(payload)
        elif kind == _PING and not flags & _ACK:
            self.write_frame(_PING, _ACK, 0, payload)
        elif kind == _PUSH_PROMISE:
            raise _Broken(PROTOCOL_ERROR, "clients push nothing")

    def _block(self, stream_id: int, flags: int, block: bytes) -> None:
        """A header block, or a part of it."""
        if len(block) > LONGEST_HEADERS:
            raise _Broken(PROTOCOL_ERROR, "a header block is too long")
        if not flags & _END_HEADERS:
            self._headers = stream_id, flags, block
            return
        try:
            headers = self._decode(block)
        except HPACKError as error:
            raise _Broken(COMPRESSION_ERROR, f"a header block: {error}") from error
        stream = self._streams.get(stream_id)
        if stream is None and stream_id > self._highest_stream and stream_id % 2:
            self._highest_stream = stream_id
            stream = self._streams[stream_id] = Stream(self, stream_id, self._stream_window)
            stream.call = self._open(stream, headers)
        if stream is not None and flags & _END_STREAM:
            self._half_close(stream)

    def _data(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._consumed += len(payload)
        if self._consumed > _TOP_UP:
            self._write_window(self._consumed)
            self._consumed = 0
        stream = self._streams.get(stream_id)
        if stream is None:
            if stream_id > self._highest_stream:
                raise _Broken(PROTOCOL_ERROR, "data of a stream that was never opened")
            return  # it was on its way when the stream was ended
        self._messages(stream, _unpadded(flags, payload) if flags & _PADDED else payload)
        if flags & _END_STREAM and not stream.closed:
            self._half_close(stream)

    def _messages(self, stream: Stream, data: bytes) -> None:
        """Hand over the messages of gRPC that are whole."""
        if stream.incoming:
            data = stream.incoming + data
        at, end = 0, len(data)
        while end - at >= 5 and not stream.closed:
            compressed, size = _MESSAGE.unpack_from(data, at)
            if compressed:
                stream.end(UNIMPLEMENTED, "compressed messages are not understood")
                return
            if size > self._longest_message:
                stream.end(RESOURCE_EXHAUSTED, f"a message of {size} bytes")
                return
            if end - at - 5 < size:
                break
            at += 5 + size
            if stream.call is not None:
                stream.call.receive(data[at - size : at])
        stream.incoming = data[at:]

    def _half_close(self, stream: Stream) -> None:
        if stream.call is not None:
            stream.call.half_close()

    def _settings(self, payload: bytes) -> None:
        for at in range(0, len(payload) - 5, 6):
            key, value = (
                int.from_bytes(payload[at : at + 2]),
                int.from_bytes(payload[at + 2 : at + 6]),
            )
            if key == 4:  # SETTINGS_INITIAL_WINDOW_SIZE
                if value > _LARGEST_WINDOW:
                    raise _Broken(FLOW_CONTROL_ERROR, "an initial window that is too large")
                for stream in self._streams.values():
                    stream.window += value - self._stream_window
                self._stream_window = value
        self.write_frame(_SETTINGS, _ACK, 0, b"")
        self._write_waiting()

    def _window_update(self, stream_id: int, payload: bytes) -> None:
        more = int.from_bytes(payload) & _LARGEST_WINDOW
        if stream_id == 0:
            self._window += more
        elif stream := self._streams.get(stream_id):
            stream.window += more
        if self._waiting:
            self._write_waiting()

    # Windows and ends.

    def _write_waiting(self) -> None:
        for stream in list(self._waiting.values()):
            while stream.outgoing:
                size = min(len(stream.outgoing), stream.window, self._window, _LONGEST_FRAME)
                if size <= 0:
                    break
                stream.window -= size
                self._window -= size
                self.write_frame(_DATA, 0, stream.id, stream.outgoing[:size])
                stream.outgoing = stream.outgoing[size:]
            if not stream.outgoing:
                del self._waiting[stream.id]

    def _write_window(self, more: int) -> None:
        self.write_frame(_WINDOW_UPDATE, 0, 0, more.to_bytes(4))

    def _go_away(self, code: int) -> None:
        self._incoming = b""
        self.write_frame(_GOAWAY, 0, 0, self._highest_stream.to_bytes(4) + code.to_bytes(4))
        self._flush()
        self.close()

    def _flush(self) -> None:
        self._flush_planned = False
        outgoing, self._outgoing = self._outgoing, []
        if self._transport is not None and outgoing:
            self._transport.write(b"".join(outgoing))

    def _lose(self, stream: Stream) -> None:
        self._forget(stream)
        if stream.call is not None:
            stream.call.lose()

    def _forget(self, stream: Stream) -> None:
        stream.closed = True
        stream.incoming, stream.outgoing = b"", memoryview(b"")
        self._streams.pop(stream.id, None)
        self._waiting.pop(stream.id, None)


def _unpadded(flags: int, payload: bytes) -> bytes:
    if not flags & _PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise _Broken(PROTOCOL_ERROR, "a frame is all padding")
    return payload[1 : len(payload) - payload[0]]
