"""A kept-alive HTTP/1.1 connection to an engine, which carries one request at a time."""

import asyncio
import fcntl
import termios
from collections.abc import Callable, Mapping
from math import inf
from typing import Protocol, cast

import httptools

ENGINE_DOWN = "engine_down"
_LONGEST_HEAD_BYTES = 1 << 16
_MOST_SPARE_BYTES = 1 << 17
_SPARE_RATIO = 16
"""Heads, sizes of chunks, their extensions and trailers may be so many bytes, and so many more for
each byte of content that came since."""
_END = b"\r\n\r\n"
_NO_BYTES = bytes(4)
_BODILESS = (204, 304)


class Listener(Protocol):
    """Whoever a request's answer is for. It is told in this order, and nothing after an end."""

    def head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """The status and the headers, by their names in lower case."""

    def data(self, data: bytes) -> None:
        """What one read brought of the body, at least one byte."""

    def end(self) -> None:
        """The body is whole."""

    def broken(self, reason: str) -> None:
        """The answer will not be completed. `reason` is a label for metrics."""


class Connection(asyncio.Protocol):
    """The client's side: writes a request, parses what comes and hands it on at once."""

    def __init__(
        self,
        read_timeout_s: float,
        on_free: Callable[["Connection"], None],
        on_lost: Callable[["Connection"], None],
    ) -> None:
        """`on_free` is called when it is released and may carry the next request."""
        self.idle_since_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._timeout_s = read_timeout_s
        self._on_free, self._on_lost = on_free, on_lost
        self._transport: asyncio.Transport | None = None
        self._arrived: list[bytes] = []
        self.on_body = self._arrived.append
        """What the parser calls with each part of a body."""
        self._parser = httptools.HttpResponseParser(self)
        self._listener: Listener | None = None
        self._timer: asyncio.TimerHandle | None = None
        """Checks for silence; it is not stopped between requests."""
        self.heard_s = -inf
        """When the last byte came."""
        self._silent_since_s = 0.0
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        self._head_part = bytearray()
        """What came in earlier reads of a head that is not whole."""
        self._head_done = False
        self._head_told = False
        self._answers = 0
        """Answers that began in what was read since the request."""
        self._own_parts = 0
        """Parts of a body that had come when a second one began."""
        self._spare_bytes = 0
        """What may still come that is no content."""
        self._descriptor = -1
        self._paused = False
        self._done = True
        self._keep_alive = True
        self._lost = False

    @property
    def reusable(self) -> bool:
        """The last answer has come to its end, and the engine keeps the connection open."""
        return self._done and not self._lost

    @property
    def is_silent(self) -> bool:
        """Nothing has come that was not read: it would be taken for the next request's answer."""
        if self._descriptor < 0:
            return True
        try:
            return fcntl.ioctl(self._descriptor, termios.FIONREAD, _NO_BYTES) == _NO_BYTES
        except OSError:
            return False

    def send(self, head: bytes, body: bytes, listener: Listener) -> None:
        """Send a request; the connection must be reusable or new."""
        assert self.reusable
        assert self._transport is not None
        self._headers = {}
        self._head_part.clear()
        self._head_done = self._head_told = self._done = False
        self._answers, self._spare_bytes = 0, _MOST_SPARE_BYTES
        self._listener = listener
        self._silent_since_s = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._check_silence)
        self._transport.writelines((head, body))

    def release(self) -> None:
        """The listener wants to hear no more.

        Unless the answer was read to its end this closes the connection, which tells the engine to
        stop generating.
        """
        self._listener = None
        self.resume()
        if self.reusable:
            self._on_free(self)
        else:
            self.lose("given_up")

    def pause(self) -> None:
        """Take nothing more from the socket."""
        assert self._transport is not None
        if not self._paused and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Go on after `pause`."""
        assert self._transport is not None
        if self._paused and not self._transport.is_closing():
            self._paused = False
            self._silent_since_s = self._loop.time()
            self._transport.resume_reading()

    def lose(self, reason: str) -> None:
        """Close the connection; whoever waits for an answer is told `reason`."""
        if self._lost:
            return
        self._lost = True
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._on_lost(self)
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.broken(reason)

    def engine_down(self) -> None:
        """The engine does not answer health probes."""
        self.lose(ENGINE_DOWN)

    def _check_silence(self) -> None:
        self._timer = None
        if self._done:
            return
        since_s = max(self._silent_since_s, self.heard_s)
        silent_s = 0.0 if self._paused else self._loop.time() - since_s
        if silent_s < self._timeout_s:
            self._timer = self._loop.call_later(self._timeout_s - silent_s, self._check_silence)
        else:
            self.lose("timeout")

    def _deliver(self) -> int:
        """Tell the listener what the last read brought, and return how many bytes of content."""
        arrived = self._arrived
        if not self._head_told and self._head_done and self._listener is not None:
            self._head_told = True
            self._listener.head(self._status, self._headers)
        if self._answers > 1:
            del arrived[self._own_parts :]
        data = b""
        if arrived:
            data = arrived[0] if len(arrived) == 1 else b"".join(arrived)
            arrived.clear()
            if self._listener is not None:
                self._listener.data(data)
        if self._done and self._listener is not None:
            listener, self._listener = self._listener, None
            listener.end()
        return len(data)

    def _ends_with(self, data: bytes, content_bytes: int, *, had_head: bool) -> bool:
        """Whether the answer ends where `data` does, the last read; False also where that cannot be
        told, because its end came in pieces.

        The parser passes over line ends behind an answer; they too would be there for the next one.
        """
        if b"content-length" not in self._headers and self._status not in _BODILESS:
            return data.endswith(_END) and data[-5:-4] not in (b"", b"\r", b"\n")
        spare = len(data) - content_bytes
        if had_head:
            return spare == 0
        head = self._head_part + data
        return len(self._head_part) + spare == head.find(_END) + len(_END)

    # --- what the transport tells ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        if (sock := transport.get_extra_info("socket")) is not None:
            self._descriptor = sock.fileno()

    def data_received(self, data: bytes) -> None:
        if self._done:  # nobody has asked for anything
            self.lose("connection_lost")
            return
        self.heard_s = self._loop.time()
        had_head, valid = self._head_done, True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            valid = False
        content_bytes = self._deliver()
        spare = self._spare_bytes + (_SPARE_RATIO + 1) * content_bytes - len(data)
        self._spare_bytes = spare if spare < _MOST_SPARE_BYTES else _MOST_SPARE_BYTES
        if had_head and valid and spare >= 0 and not self._done:
            return  # a part of a body, as mostly
        if not self._head_done:
            self._head_part += data
        endless = len(self._head_part) > _LONGEST_HEAD_BYTES
        kept = not self._done or (
            self._keep_alive
            and self._answers == 1
            and self._ends_with(data, content_bytes, had_head=had_head)
        )
        if endless or not valid or spare < 0 or not kept:
            self.lose("connection_lost")

    def connection_lost(self, exc: Exception | None) -> None:
        counted = b"content-length" in self._headers or b"transfer-encoding" in self._headers
        if exc is None and self._head_done and not self._done and not counted:
            self._done = True  # a body without a length ends with its connection
            self._deliver()
        self.lose("connection_lost")

    # --- what the parser tells ---

    def on_message_begin(self) -> None:
        self._answers += 1
        if self._answers == 2:
            self._own_parts = len(self._arrived)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head_done:  # a trailer is nobody's header
            self._headers.setdefault(name.lower(), value)

    def on_headers_complete(self) -> None:
        if self._head_done:
            return  # another answer, which nobody asked for
        self._status = self._parser.get_status_code()
        if self._status < 200:  # such as 100: the answer itself is still to come
            self._headers, self._answers = {}, 0
            return
        self._head_done = True
        if self._status in _BODILESS:
            self._done = True

    def on_message_complete(self) -> None:
        if self._head_done and self._answers == 1:
            self._done = True
            self._keep_alive = self._parser.should_keep_alive()
