"""A kept-alive HTTP/1.1 connection to an engine, which carries one request at a time."""

import asyncio
import fcntl
import logging
import sys
import termios
from collections.abc import Callable, Mapping
from math import inf
from typing import Protocol, cast

import httptools

from foretell.http1.body import Body, Chunked, Counted
from foretell.http1.bounds import Bounds, RemoteProtocolError, malformed
from foretell.openai.parsing import Spliced
from foretell.services.scheduler.turns import Turns

logger = logging.getLogger(__name__)

ENGINE_DOWN = "engine_down"
_BOUNDS = Bounds(chunk_extension_bytes=1 << 17, trailer_bytes=1 << 16, small_chunks=sys.maxsize)
"""Engines may send any number of small chunks, since each brings content."""
_BEGIN, _END = b"HTTP/1.", b"\r\n\r\n"
_BODILESS = (204, 304)
_SMALL_BYTES = 1 << 12
"""A read of at most this size is handed on at once; nearly all reads are."""
_SLICE_BYTES = 1 << 13
"""Longer reads are handed on in slices, by turns: at 3 bytes an event, a slice is much work."""


class AnswerListener(Protocol):
    """Receives the answer to a request. Calls come in this order, none after `end` or `broken`."""

    def head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """The status and the headers, whose names are in lower case."""

    def data(self, data: bytes) -> None:
        """The next part of the body, at least one byte."""

    def end(self) -> None:
        """The body is complete."""

    def broken(self, reason: str) -> None:
        """The answer will not be completed. `reason` is a label for metrics."""


class EngineConnection(asyncio.Protocol):
    """The client side: writes a request, parses the answer and hands it on at once."""

    def __init__(
        self,
        read_timeout_s: float,
        on_free: Callable[["EngineConnection"], None],
        on_lost: Callable[["EngineConnection"], None],
        turns: Turns,
    ) -> None:
        """`on_free` is called when it is released and may carry the next request."""
        self.idle_since_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._timeout_s = read_timeout_s
        self._on_free, self._on_lost = on_free, on_lost
        self._transport: asyncio.Transport | None = None
        self._listener: AnswerListener | None = None
        self._timer: asyncio.TimerHandle | None = None
        """Checks for silence; it is not stopped between requests."""
        self.heard_s = -inf
        """When the last byte came."""
        self._silent_since_s = 0.0
        self._head_part = bytearray()
        self._parser: httptools.HttpResponseParser | None = None
        """Parses the answer's head, and refuses an ambiguous one."""
        self._status = 0
        """0 until the head has come."""
        self._headers: dict[bytes, bytes] = {}
        self._keep_alive = False
        self._body: Body | None = None
        """None, once the head has come: the body ends with the connection."""
        self._spare_bytes = 0
        """Bytes that heads may still have: the answer's own, and interim ones before it."""
        self._unread, self._at = b"", 0
        """Bytes that wait for their turn, and the index of the first. Reading pauses meanwhile."""
        self._turns = turns
        self._asked = False
        self._ended: bool | None = None
        """Set once the transport is closed: True if that was without an error."""
        self._descriptor, self._waiting_bytes = -1, bytearray(4)
        self._paused = False
        self._done = True
        self._lost = False

    @property
    def reusable(self) -> bool:
        """Whether the last answer has ended and the engine keeps the connection open."""
        return self._done and not self._lost

    @property
    def is_silent(self) -> bool:
        """Whether no unread bytes have come: they would be taken for the next request's answer."""
        if self._descriptor < 0:
            return True
        try:
            fcntl.ioctl(self._descriptor, termios.FIONREAD, self._waiting_bytes)
        except OSError:
            return False
        return not any(self._waiting_bytes)

    def send(self, head: bytes, body: bytes | Spliced, listener: AnswerListener) -> None:
        """Send a request; the connection must be reusable or new."""
        assert self._done
        assert not self._lost
        assert self._transport is not None
        self._status, self._body = 0, None
        self._spare_bytes = _BOUNDS.head_bytes
        self._done = False
        self._listener = listener
        self._silent_since_s = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._check_silence)
        if isinstance(body, bytes):  # copying it is cheaper than writing two parts
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, *body.parts))

    def release(self) -> None:
        """Detach the listener. Unless the answer was read to its end, this closes the connection,
        which makes the engine stop generating."""
        self._listener = None
        if self._paused:
            self.resume()
        if self._done and not self._lost:
            self._on_free(self)
        else:
            self.lose("given_up")

    def pause(self) -> None:
        self._paused = True
        self._set_reading()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self._silent_since_s = self._loop.time()
            self._go_on()

    def lose(self, reason: str) -> None:
        """Close the connection; the listener gets `broken` with `reason`."""
        if self._lost:
            return
        self._lost = True
        self._unread, self._at = b"", 0
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._on_lost(self)
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.broken(reason)

    def engine_down(self) -> None:
        """Close the connection: the engine does not answer health probes."""
        self.lose(ENGINE_DOWN)

    def _check_silence(self) -> None:
        self._timer = None
        if self._done:
            return
        since_s = max(self._silent_since_s, self.heard_s)
        silent_s = 0.0 if self._paused or self._waits else self._loop.time() - since_s
        if silent_s < self._timeout_s:
            self._timer = self._loop.call_later(self._timeout_s - silent_s, self._check_silence)
        else:
            self.lose("timeout")

    # --- called by the transport ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        if (sock := transport.get_extra_info("socket")) is not None:
            self._descriptor = sock.fileno()

    def data_received(self, data: bytes) -> None:
        if self._done:  # there is no request in progress
            self.lose("connection_lost")
            return
        self.heard_s = self._loop.time()
        if len(data) <= _SMALL_BYTES and not self._unread:
            self._take(data)
        else:
            self._unread, self._at = self._unread[self._at :] + data, 0
            self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = exc is None
        if not self._waits:
            self._close()

    # --- turns ---

    @property
    def _waits(self) -> bool:
        """Whether some bytes that have come were not handed on."""
        return self._at < len(self._unread)

    def _go_on(self) -> None:
        if self._waits and not self._paused and not self._asked:
            self._asked = True
            self._turns.ask(self._take_slice)
        self._set_reading()

    def _set_reading(self) -> None:
        assert self._transport is not None
        if self._transport.is_closing():
            return
        if self._paused or self._waits:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _take_slice(self) -> bool:
        """Hand a slice on; return whether there is another one."""
        if self._waits and not self._paused:
            data = self._unread[self._at : self._at + _SLICE_BYTES]
            self._at += len(data)
            try:
                self._take(data)
            except Exception:  # the last line of defence: the turns of other engines go on
                logger.exception("the scheduler failed")
                self.lose("connection_lost")
        if not self._waits:
            self._unread, self._at = b"", 0
        self._asked = self._waits and not self._paused
        if not self._asked and not self._lost:
            if self._ended is not None and not self._waits:
                self._close()
            else:
                self._set_reading()
        return self._asked

    def _take(self, data: bytes) -> None:
        """Hand on the part of the body in `data`."""
        try:
            if not self._status:
                data = self._take_head(data)
            if not self._status:
                return
            body = self._body
            content, at = (data, len(data)) if body is None else body.take(data, 0)
        except RemoteProtocolError:
            self.lose("connection_lost")
            return
        if content and self._listener is not None:
            self._listener.data(content)
        if body is not None and body.done:
            self._end()
            if at < len(data) or self._waits or not self._keep_alive:
                self.lose("connection_lost")

    def _close(self) -> None:
        if self._ended and self._status and self._body is None and not self._done:
            self._end()  # a body without a length ends with its connection
        self.lose("connection_lost")

    def _take_head(self, data: bytes) -> bytes:
        """Read the head; return the bytes after it, if any. Raises `RemoteProtocolError`."""
        if self._head_part:
            data = bytes(self._head_part) + data
            self._head_part.clear()
        while (end := data.find(_END) + len(_END)) >= len(_END) and self._spare_bytes >= 0:
            status, data = self._parsed(data[:end]), data[end:]
            self._spare_bytes -= end
            if status >= 200:  # interim answers may come before it, such as 100
                self._body = self._body_of(status)
                self._status = status
                if self._listener is not None:
                    self._listener.head(status, self._headers)
                return data
        if len(data) > self._spare_bytes or not data.startswith(_BEGIN[: len(data)]):
            raise malformed("it has no head, or one that is too long")
        self._head_part += data
        return b""

    def _parsed(self, head: bytes) -> int:
        """Parse a complete head; return its status. Raises `RemoteProtocolError`."""
        self._headers = {}
        self._parser = httptools.HttpResponseParser(self)
        try:
            self._parser.feed_data(head)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise malformed(str(error)) from error
        return int(self._parser.get_status_code())

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.setdefault(name.lower(), value)

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self._keep_alive = self._parser.should_keep_alive()

    def _body_of(self, status: int) -> Body | None:
        """The body that follows the head, see `_body`. Raises `RemoteProtocolError`."""
        if status in _BODILESS:
            return Counted(0)
        if (coding := self._headers.get(b"transfer-encoding")) is not None:
            if coding.lower() != b"chunked":
                raise malformed("nobody asked for this transfer coding")
            return Chunked(_BOUNDS)
        length = self._headers.get(b"content-length")
        return Counted(int(length)) if length is not None else None

    def _end(self) -> None:
        self._done = True
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.end()
