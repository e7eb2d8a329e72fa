"""A kept-alive HTTP/1.1 connection to an engine, which carries one request at a time."""

import asyncio
from typing import cast

import httptools

_MOST_WAITING_BYTES = 1 << 17
"""When so much of an answer waits to be read, no more is taken from the socket."""
_LONGEST_HEAD_BYTES = 1 << 16
_BODILESS = (204, 304)


class ConnectionBroken(Exception):
    """The answer will not be completed. `reason` is a label for metrics."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Connection(asyncio.Protocol):
    """The client's side: writes a request, parses what comes, wakes whoever waits for it."""

    def __init__(self, read_timeout_s: float) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        """The answer's headers by their names in lower case."""
        self.idle_since_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._timeout_s = read_timeout_s
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard_s = 0.0
        """When the last byte came; silence is counted from here."""
        self._head_bytes = 0
        self._head_done = False
        self._arrived: list[bytes] = []
        self._waiting_bytes = 0
        self._paused = False
        self._done = True
        self._broken = ""
        """Why nothing more will come; "" while something may."""

    @property
    def reusable(self) -> bool:
        """The last answer has come to its end, and the engine keeps the connection open."""
        return self._done and not self._broken

    def send(self, head: bytes, body: bytes) -> None:
        """Send a request; the connection must be reusable or new."""
        assert self.reusable
        assert self._transport is not None
        self.status, self.headers = 0, {}
        self._head_bytes, self._head_done, self._done = 0, False, False
        self._arrived.clear()
        self._waiting_bytes = 0
        self._heard_s = self._loop.time()
        self._timer = self._loop.call_later(self._timeout_s, self._check_silence)
        self._transport.writelines((head, body))

    async def head(self) -> None:
        """Wait for the answer's status and headers; raises `ConnectionBroken`."""
        while not self._head_done:
            await self._news()

    async def read(self) -> bytes:
        """What has come of the body since the last call; b"" at its end.

        Raises `ConnectionBroken` when all that came before the break was read.
        """
        while not self._arrived:
            if self._done:
                return b""
            await self._news()
        data = self._arrived[0] if len(self._arrived) == 1 else b"".join(self._arrived)
        self._arrived.clear()
        self._waiting_bytes = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._heard_s = self._loop.time()
            self._transport.resume_reading()
        return data

    def lose(self, reason: str) -> None:
        """Close the connection; whoever waits for an answer is told `reason`."""
        if not self._broken:
            self._broken = reason
            self._stop_timer()
            if self._transport is not None:
                self._transport.abort()
            self._wake()

    async def _news(self) -> None:
        if self._broken:
            raise ConnectionBroken(self._broken)
        assert self._waiter is None, "one reader at a time"
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _check_silence(self) -> None:
        silent_s = 0.0 if self._paused else self._loop.time() - self._heard_s
        if silent_s < self._timeout_s:
            self._timer = self._loop.call_later(self._timeout_s - silent_s, self._check_silence)
        else:
            self.lose("timeout")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- what the transport tells ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        if self._done:  # nobody has asked for anything
            self.lose("connection_lost")
            return
        self._heard_s = self._loop.time()
        if not self._head_done:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.lose("connection_lost")
        if not self._head_done and self._head_bytes > _LONGEST_HEAD_BYTES:
            self.lose("connection_lost")
        if self._waiting_bytes > _MOST_WAITING_BYTES and not self._paused and not self._broken:
            assert self._transport is not None
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        counted = b"content-length" in self.headers or b"transfer-encoding" in self.headers
        if exc is None and self._head_done and not self._done and not counted:
            self._finish()  # a body without a length ends with its connection
        self.lose("connection_lost")

    # --- what the parser tells ---

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.setdefault(name.lower(), value)

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status < 200:  # such as 100: the answer itself is still to come
            self.headers = {}
            return
        self._head_done = True
        if self.status in _BODILESS:
            self._finish()

    def on_body(self, data: bytes) -> None:
        self._arrived.append(data)
        self._waiting_bytes += len(data)

    def on_message_complete(self) -> None:
        if self._head_done:
            self._finish()
            if not self._parser.should_keep_alive():
                self.lose("connection_lost")

    def _finish(self) -> None:
        self._done = True
        self._stop_timer()
