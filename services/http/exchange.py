"""One request of a client and its answer, as the application sees them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from io import BytesIO
from math import inf
from typing import Protocol

from foretell.http1.head import RequestHead
from foretell.http1.response import Headers, Response, head_of
from foretell.openai.errors import ApiError

BODY_DEADLINE_S = 60.0
"""Longest time that a request's body may take to arrive: it holds a place meanwhile."""
BODY_PATIENCE_S = 20.0
UNCOUNTED_BYTES = 1 << 16
"""Shorter bodies are not counted with the bytes of all: the limit of requests bounds them."""
_LONG_BYTES = 1 << 20
_MAPPED_BYTES = 33 << 20
"""More than the GNU C library ever takes from its heap (`M_MMAP_THRESHOLD`, mallopt(3))."""
LEAST_BODY_BYTES_PER_S = 1024
"""Least mean rate of a body, not counting `BODY_PATIENCE_S`. It is the rule of Apache's
`mod_reqtimeout`, where the default is 500."""


def declared_bytes(length: str) -> int:
    """The number in a `content-length`, read to 19 digits; 0 if it is not a number."""
    digits = length.lstrip("0")
    return int(digits[:19]) if digits.isascii() and digits.isdecimal() else 0


def body_too_long(limit_bytes: int) -> ApiError:
    return ApiError(
        413, f"the request body is longer than {limit_bytes} bytes", code="request_too_large"
    )


def body_too_late() -> ApiError:
    return ApiError(408, "the request body did not arrive in time")


def with_room(body: BytesIO) -> BytesIO:
    """A buffer with the same content that can grow without copies. A long body is moved to memory
    that is mapped for it alone: pages not written yet take none. Call `truncate` at its end."""
    if body.tell() < _LONG_BYTES or body.getbuffer().nbytes >= _MAPPED_BYTES:
        return body
    longer = BytesIO(bytes(_MAPPED_BYTES))
    longer.write(body.getbuffer())
    return longer


_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_COMMENT = b"2\r\n:\n\r\n"
_CHUNKED = b"transfer-encoding: chunked\r\n"
_CLOSE = b"connection: close\r\n"
_BODILESS = (204, 304)
_MOST_UNTAKEN_BYTES = 1 << 20
"""If more of a body waits for the application, reading from the client pauses."""


class Holder(Protocol):
    """Counts the bytes that are held of a body."""

    def hold(self, body_bytes: int) -> None:
        """So many bytes of the body have come in all; raises `ApiError` if that is too much."""


class ExchangeConnection(Protocol):
    """The connection, as far as an exchange needs it."""

    full: bool

    def send(self, data: bytes) -> None: ...

    def answered(self) -> None: ...

    def abort(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Answering:
    """Where an answer is written: an exchange, or a wrapper around one."""

    __slots__ = ("begun", "status")
    begun: bool
    """The client may have seen a part: from here on nothing can be repeated."""
    status: int
    """What metrics count: the HTTP status; 502 for an answer that broke off."""

    @property
    def left(self) -> bool:
        raise NotImplementedError

    def flow(self, on_full: Callable[[], None], on_room: Callable[[], None]) -> None: ...

    def start(self, status: int, headers: Headers, *, has_length: bool = False) -> None: ...

    def write(self, data: bytes) -> None: ...

    def end(self, data: bytes = b"") -> None: ...

    def abandon(self) -> None: ...

    def over(self) -> None:
        """Nothing more is sent."""

    def respond(self, response: Response) -> None:
        self.start(response.status, response.all_headers(), has_length=True)
        self.end(response.body)

    def end_with(self, error: ApiError, path: str, request_id: str, number: int = 0) -> None:
        """End the answer to a request to `path` with `error`: as the whole answer or, if that has
        begun, as event `number` of its stream."""
        self.status = error.status
        if self.begun:
            self.end(error.sse_event(path, number))
        else:
            error.headers = {**error.headers, "x-request-id": request_id}
            self.respond(error.response(path))


class Exchange(Answering):
    """A request whose head has come. It must be answered once, unless the client has left. What is
    sent to a client that has left is dropped."""

    left: bool
    __slots__ = (
        *("method", "path", "query", "headers", "request_id", "keep_alive", "whole"),
        *("ended", "left", "on_left", "on_full", "on_room", "body_bytes", "extra_lines"),
        *("_line", "_head_only", "_is_1_1", "_chunked", "_head", "_body", "_news"),
        *("_expects", "_declared_bytes", "_failure", "_waited_s", "_told"),
    )

    def __init__(self, line: ExchangeConnection, head: RequestHead) -> None:
        self.method = head.method
        self.path = head.path
        self.query = head.query
        self.headers = head.headers
        self.request_id = ""
        """The id that its client knows; "" until there is one."""
        self.keep_alive = head.keep_alive
        self.whole = head.content is not None
        """The body has come to its end."""
        self.begun = False
        self.status = 0
        self.ended = False
        self.left = False
        self.on_left: Callable[[], object] | None = None
        """Called when the client leaves before its answer has ended."""
        self.on_full: Callable[[], None] | None = None
        self.on_room: Callable[[], None] | None = None
        self.body_bytes = len(head.content or b"")
        """Bytes of the body that have come."""
        self.extra_lines = b""
        """Header lines for any answer."""
        self._line = line
        self._head_only = head.method == "HEAD"
        self._is_1_1 = head.is_1_1
        self._chunked = False
        self._head = b""
        self._told: Headers = ()
        self._body: bytes | bytearray = head.content or b""
        self._news: asyncio.Future[None] | None = None
        self._declared_bytes = head.length_bytes or 0
        self._failure: ApiError | None = None
        self._waited_s = 0.0
        expects = self.headers.get("expect")
        self._expects = expects is not None and expects.lower() == "100-continue" and head.is_1_1

    # --- called by the application ---

    async def body(self, limit_bytes: int, holder: Holder) -> bytes:
        """The whole body; raises as `parts` and `holder` do. It is held in memory only once."""
        if max(self.body_bytes, self._declared_bytes) > limit_bytes:
            raise body_too_long(limit_bytes)
        if not self.whole:
            body = BytesIO()  # `getvalue` makes no copy, which a bytearray would need
            async for part in self.parts(limit_bytes, BODY_DEADLINE_S):
                if self.body_bytes > UNCOUNTED_BYTES:
                    holder.hold(self.body_bytes)
                    body = with_room(body)
                body.write(part)
            body.truncate()
            return body.getvalue()
        self._check(limit_bytes)
        whole, self._body = self._body, b""
        return bytes(whole)

    async def parts(self, limit_bytes: int, most_s: float = inf) -> AsyncIterator[bytes]:
        """The body as it comes. Reading from the client pauses while too little of it is taken.
        Raises `ApiError` 413 for a longer body, 408 for one that comes too slowly or takes longer
        than `most_s`, and 400 for an invalid one."""
        while True:
            self._check(limit_bytes)
            if self._body:
                data, self._body = bytes(self._body), b""
                self._line.resume()
                yield data
            elif self.whole:
                return
            else:
                await self._wait_for_body(most_s)

    def _check(self, limit_bytes: int) -> None:
        if self._failure is not None:
            raise self._failure
        if self.body_bytes > limit_bytes:
            raise body_too_long(limit_bytes)

    async def _wait_for_body(self, most_s: float) -> None:
        """Wait for more of the body. Raises `ApiError` 408 if it comes below the least rate, or if
        all waits together exceed `most_s`."""
        if self._expects:
            self._expects = False
            self._line.send(_CONTINUE)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        waited_s = 0.0
        while waited_s < (allowed_s := min(most_s - self._waited_s, self._patience_s())):
            self._news = loop.create_future()
            try:
                async with asyncio.timeout_at(began_s + allowed_s):
                    await self._news
            except TimeoutError:  # unless enough has come meanwhile
                waited_s = loop.time() - began_s
            else:
                self._waited_s += loop.time() - began_s
                return
        raise body_too_late()

    def _patience_s(self) -> float:
        """How much longer the body may pause without falling below the least rate."""
        earned_s = self.body_bytes / LEAST_BODY_BYTES_PER_S
        return BODY_PATIENCE_S + earned_s - self._waited_s

    def flow(self, on_full: Callable[[], None], on_room: Callable[[], None]) -> None:
        """Call `on_full` when the client reads too slowly, and `on_room` when it has caught up."""
        self.on_full, self.on_room = on_full, on_room
        if self._line.full:
            on_full()

    def start(self, status: int, headers: Headers, *, has_length: bool = False) -> None:
        """Begin the answer; `has_length`: `content-length` is among its headers."""
        self.begun, self.status = True, status
        if self._expects:  # the client may send its body or not: the next request could
            self.keep_alive = False  # be mistaken for it
        lines, self._told = self.extra_lines, headers
        self._head_only |= status in _BODILESS
        if not has_length and not self._head_only:
            self._chunked = self._is_1_1
            self.keep_alive &= self._chunked
            lines += _CHUNKED if self._chunked else b""
        if not self.keep_alive:
            lines += _CLOSE
        self._head = head_of(status, headers, lines)

    def write(self, data: bytes) -> None:
        if self._chunked:
            data = b"%b%x\r\n%b\r\n" % (self._head, len(data), data)
            self._head = b""
        elif self._head_only:
            data, self._head = self._head, b""
        elif self._head:
            data, self._head = self._head + data, b""
        self._line.send(data)

    def end(self, data: bytes = b"") -> None:
        if self._chunked:
            last = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            self._line.send(b"%b%b0\r\n\r\n" % (self._head, last))
        elif data:
            self.write(data)
        elif self._head:
            self._line.send(self._head)
        self._head = b""
        self.ended = True
        self._body = b""
        if not self.whole:
            self._line.resume()
        self.on_left = self.on_full = self.on_room = None
        if not self.left:
            self._line.answered()

    def abandon(self) -> None:
        """Give the request up without an answer or in mid-answer: close the connection."""
        self.on_left = None  # it is not the client that leaves
        self._line.abort()

    # --- called by the connection ---

    def take(self, data: bytes) -> None:
        self.body_bytes += len(data)
        if self.ended:
            return  # answered already: the rest is not needed
        if not self._body:
            self._body = data
        else:  # not a list: for single bytes it would hold an object each
            if type(self._body) is bytes:
                self._body = bytearray(self._body)
            self._body += data
        if len(self._body) > _MOST_UNTAKEN_BYTES:
            self._line.pause()
        self._wake()

    def fail(self, error: ApiError) -> None:
        """The body is invalid: reading it raises `error`, and the connection ends."""
        self._failure = error
        self.keep_alive = False
        self._body = b""
        self._wake()

    def probe(self) -> bool:
        """Send bytes without meaning, so that a client that has gone is noticed. False: nothing can
        be sent, and the client counts as gone."""
        if not self.begun:
            if self._is_1_1:
                self._line.send(_CONTINUE)
            return self._is_1_1
        if self._chunked and not self._head and _are_events(self._told):
            self._line.send(_COMMENT)  # only whole lines were sent before
        return True

    def take_end(self) -> None:
        self.whole = True
        self._expects = False
        self._wake()

    def lose(self) -> None:
        if not self.left and not self.ended:
            self.left = True
            if self.on_left is not None:
                self.on_left()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)


def _are_events(headers: Headers) -> bool:
    return any(
        name == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in headers
    )
