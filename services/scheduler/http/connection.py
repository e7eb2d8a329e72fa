"""A client's HTTP/1.1 connection: a protocol of our own around httptools' parser.

There is no framework between client and engine because each chunk of each answer passes here.
"""

import asyncio
from collections import deque
from contextlib import suppress
from math import inf
from typing import Protocol, cast
from urllib.parse import unquote

import httptools

from services.scheduler.http.errors import ApiError
from services.scheduler.http.exchange import Exchange
from services.scheduler.http.response import head_of

STALL_S = 120.0
"""A client that reads nothing for so long is gone."""
_LONGEST_HEAD_BYTES = 1 << 16
_MOST_HEADERS = 256
_HEAD_DEADLINE_S = 20.0
_IDLE_S = 75.0  # longer than clients and balancers keep a connection: it is theirs to close
RETIRE_S = 1.0
"""While the server ends, an idle connection is kept so long: a request may be on its way."""
_LINGER_S = 5.0
_DRAIN_S = 10.0
_MOST_DRAINED_BYTES = 64 << 20
"""A body of which more comes after its answer, or for longer, ends the connection."""
_MOST_UNREAD_BYTES = 1 << 20
"""What is read behind bytes that are no request; more of it ends the connection at once."""
_MOST_AHEAD_BYTES = 1 << 16
"""When more than that waits behind the request that is being answered, reading stops."""


class Owner(Protocol):
    """The server, as far as a connection needs it."""

    draining: bool
    """Connections end with the request that they carry."""

    def opened(self, connection: "Connection") -> None: ...

    def closed(self, connection: "Connection") -> None: ...

    def begin(self, exchange: Exchange) -> None: ...


class Connection(asyncio.Protocol):
    """A client's connection. Requests on it are answered one after the other."""

    def __init__(self, server: Owner) -> None:
        self.deadline_s = 0.0
        """When the client must have done what it has to do next."""
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: dict[str, str] = {}
        self._reads_head = False
        self._head_bytes = 0
        """The length of the URL and of all headers so far."""
        self._read_bytes = 0
        """What was read since the head began, but for the first read."""
        self.full = False
        self._deaf = False
        """What still comes is not read: the connection closes after the answer."""
        self._current: Exchange | None = None
        """Is being answered, or was, while its body still comes."""
        self._receiving: Exchange | None = None
        """Its body is being received."""
        self._waiting: deque[Exchange] = deque()
        """Pipelined behind the current one."""
        self._ahead_bytes = 0
        self._unsent_bytes = 0

    # --- what the transport tells ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._server.opened(self)
        self._due_in(_HEAD_DEADLINE_S)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            self._read_bytes += len(data)
            if self._read_bytes > _MOST_UNREAD_BYTES:
                self.abort()
            return
        if self._reads_head:
            self._read_bytes += len(data)
        if self._current is not None and self._current.whole:
            self._ahead_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse(ApiError(400, "this is no valid HTTP/1.1 request", code="http_invalid"))
        if self._reads_head and self._read_bytes > _LONGEST_HEAD_BYTES:
            self._refuse(_head_too_long())
        if self._ahead_bytes > _MOST_AHEAD_BYTES and not self._deaf:
            assert self._transport is not None
            self._transport.pause_reading()

    def eof_received(self) -> None:
        if self._current is not None and not self._current.ended:
            self.abort()  # whoever waits for an answer keeps its side open

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.closed(self)
        self._waiting.clear()
        if self._current is not None:
            self._current.lose()

    def pause_writing(self) -> None:
        self.full = True
        self._due_in(STALL_S)
        if self._current is not None and self._current.on_full is not None:
            self._current.on_full()

    def resume_writing(self) -> None:
        self.full = False
        if self._current is not None and not self._current.ended:
            self.deadline_s = inf
            if self._current.on_room is not None:
                self._current.on_room()

    # --- what the parser tells ---

    def on_message_begin(self) -> None:
        self._url, self._headers = b"", {}
        self._head_bytes = self._read_bytes = 0
        self._reads_head = True
        if self._current is None:
            self._due_in(_HEAD_DEADLINE_S)

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._head_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        self._headers.setdefault(name.lower().decode("latin-1"), value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        self._reads_head = False
        if self._head_bytes > _LONGEST_HEAD_BYTES or len(self._headers) > _MOST_HEADERS:
            self._refuse(_head_too_long())
        if self._deaf or self._parser.should_upgrade():
            return
        http_1_1 = self._parser.get_http_version() == "1.1"
        exchange = Exchange(
            self,
            self._parser.get_method().decode("latin-1"),
            _path_of(self._url),
            self._headers,
            keep_alive=http_1_1 and self._parser.should_keep_alive(),
            chunks_allowed=http_1_1,
            query=self._url.partition(b"?")[2].decode("latin-1"),
        )
        self._receiving = exchange
        if self._current is None:
            self._begin(exchange)
        else:
            self._waiting.append(exchange)

    def on_body(self, data: bytes) -> None:
        if self._receiving is not None:
            self._receiving.take(data)
            if self._receiving.ended and self._receiving.body_bytes > _MOST_DRAINED_BYTES:
                self.abort()

    def on_message_complete(self) -> None:
        exchange, self._receiving = self._receiving, None
        if exchange is not None:
            exchange.take_end()
            if exchange.ended:
                self._advance()

    # --- what an exchange tells ---

    def send(self, data: bytes) -> None:
        """Send bytes of an answer."""
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.write(data)

    def answered(self) -> None:
        """The current exchange has been answered; its body may still be on its way."""
        assert self._current is not None
        if self._current.whole:
            self._advance()
        else:
            self._due_in(_DRAIN_S)

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()
        if self._current is not None:
            self._current.lose()

    def pause(self) -> None:
        """Read no more of the body for now."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # --- what the server tells ---

    def retire(self) -> None:
        """Answer what has come, or comes at once, and take no more."""
        if self._current is None:
            self._due_in(RETIRE_S)
        else:
            self._current.keep_alive = False

    def overdue(self) -> None:
        """The client did not do in time what it had to."""
        assert self._transport is not None
        unsent_bytes = self._transport.get_write_buffer_size()
        if unsent_bytes and unsent_bytes != self._unsent_bytes:
            self._unsent_bytes = unsent_bytes
            self._due_in(STALL_S)  # it reads, slowly
        elif unsent_bytes or self._current is not None or self._deaf:
            self.abort()
        elif self._reads_head and not self._server.draining:
            self._refuse(ApiError(408, "the request's head did not arrive in time"))
        else:
            self._close()

    # --- on its own ---

    def _begin(self, exchange: Exchange) -> None:
        self._current = exchange
        self.deadline_s = inf
        if self._server.draining:
            exchange.keep_alive = False
        self._server.begin(exchange)

    def _advance(self) -> None:
        """The current exchange has ended: go on with the next request, or close."""
        assert self._current is not None
        assert self._transport is not None
        if not self._current.keep_alive or self._deaf:
            self._close()
            return
        self._current = None
        if self._waiting:
            self._begin(self._waiting.popleft())
            if not self._waiting and self._ahead_bytes:
                self._ahead_bytes = 0
                self._transport.resume_reading()
        else:
            self._due_in(_HEAD_DEADLINE_S if self._reads_head else _IDLE_S)

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Read a request that offers another protocol, such as h2c, as one that does not.

        The parser takes all that follows such a head, `rest`, for the other protocol.
        """
        method = self._parser.get_method().decode("latin-1")
        if method == "CONNECT":
            self._refuse(ApiError(405, "Method Not Allowed: CONNECT"))
            return
        lines = [f"{method} {self._url.decode('latin-1')} HTTP/1.1"]
        lines += [
            f"{name}: {value}"
            for name, value in self._headers.items()
            if name not in ("connection", "upgrade")
        ]
        self._parser = httptools.HttpRequestParser(self)
        self.data_received("\r\n".join([*lines, "", ""]).encode("latin-1") + rest)

    def _refuse(self, error: ApiError) -> None:
        """Answer bytes that are no request, unless a request is being answered, and close."""
        self._deafen()
        if self._current is None:
            response = error.response()
            head = head_of(response.status, response.all_headers(), b"connection: close\r\n")
            self.send(head + response.body)
            # Were it closed with bytes unread, the client might never see the answer.
            self._due_in(_LINGER_S)
            assert self._transport is not None
            if not self._transport.is_closing() and self._transport.can_write_eof():
                self._transport.write_eof()  # TLS has no such half

    def _deafen(self) -> None:
        self._deaf = True
        if self._current is not None:
            self._current.keep_alive = False

    def _close(self) -> None:
        assert self._transport is not None
        self._deaf = True
        self._current = None
        self._due_in(STALL_S)  # what is still unsent must be read
        self._transport.close()

    def _due_in(self, seconds: float) -> None:
        self.deadline_s = self._loop.time() + seconds


def _path_of(url: bytes) -> str:
    """The path of a request's target, which may be a whole URL."""
    if b"?" in url or b"%" in url or not url.startswith(b"/"):
        with suppress(httptools.HttpParserInvalidURLError):
            path = httptools.parse_url(url).path or b""
            return unquote(path.decode("latin-1"))
    return url.decode("latin-1")


def _head_too_long() -> ApiError:
    text = f"a request's head has at most {_LONGEST_HEAD_BYTES} bytes and {_MOST_HEADERS} headers"
    return ApiError(431, text, code="request_too_large")
