"""One request of a client and its answer, as the application sees them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from services.scheduler.http import limits
from services.scheduler.http.limits import body_too_late, body_too_long
from services.scheduler.http.response import Headers, Response, head_of

_CHUNKED = b"transfer-encoding: chunked\r\n"
_CLOSE = b"connection: close\r\n"
_BODILESS = (204, 304)
_MOST_UNTAKEN_BYTES = 1 << 20
"""When more than that of a body waits to be taken part by part, the client has to wait."""


class ClientLeft(Exception):
    """The client has closed its connection before its request was whole."""


class Line(Protocol):
    """The connection, as far as an exchange needs it."""

    full: bool
    """The client reads more slowly than it is written to."""

    def send(self, data: bytes) -> None: ...

    def answered(self) -> None: ...

    def abort(self) -> None: ...

    def pause(self) -> None:
        """Read no more from the client for now."""
        ...

    def resume(self) -> None:
        """Read again."""
        ...


class Answering(Protocol):
    """Where an answer goes: to an exchange, or to what stands for one."""

    on_left: Callable[[], None] | None
    """Called when the client leaves before its answer has ended."""

    @property
    def left(self) -> bool:
        """The client has left."""
        ...

    def respond(self, response: Response) -> None: ...

    def flow(self, on_full: Callable[[], None], on_room: Callable[[], None]) -> None: ...

    def start(self, status: int, headers: Headers, *, has_length: bool = False) -> None: ...

    def write(self, data: bytes) -> None: ...

    def end(self, data: bytes = b"") -> None: ...


class Exchange:
    """A request whose head has come. It must be answered once, unless the client has left.

    What is sent to a client that has left goes nowhere.
    """

    __slots__ = (
        *(
            "method",
            "path",
            "query",
            "headers",
            "request_id",
            "keep_alive",
            "whole",
            "begun",
            "ended",
            "left",
        ),
        *("on_left", "on_full", "on_room", "body_bytes"),
        *("_line", "_chunks_allowed", "_chunked", "_head", "_parts", "_limit", "_news", "_expects"),
        *("_in_parts", "_untaken_bytes"),
    )

    def __init__(
        self,
        line: Line,
        method: str,
        path: str,
        headers: dict[str, str],
        *,
        keep_alive: bool,
        chunks_allowed: bool,
        query: str = "",
    ) -> None:
        """`chunks_allowed`: the client speaks HTTP/1.1."""
        self.method = method
        self.path = path
        self.query = query
        """What stands behind the question mark of the target, as it came."""
        self.headers = headers
        """By their names in lower case; of several with one name, the first."""
        self.request_id = ""
        """The one that its client knows, once there is one."""
        self.keep_alive = keep_alive
        self.whole = False
        """The body has come to its end."""
        self.begun = False
        self.ended = False
        """The answer has come to its end."""
        self.left = False
        self.on_left: Callable[[], None] | None = None
        """Called when the client leaves before its answer has ended."""
        self.on_full: Callable[[], None] | None = None
        self.on_room: Callable[[], None] | None = None
        self.body_bytes = 0
        """What has come of the body."""
        self._line = line
        self._chunks_allowed = chunks_allowed
        self._chunked = False
        self._head = b""
        """The head of the answer, until it goes out with the first bytes of the body."""
        self._parts: list[bytes] = []
        self._limit: int | None = None
        self._news: asyncio.Future[None] | None = None
        self._in_parts = False
        self._untaken_bytes = 0
        self._expects = headers.get("expect", "").lower() == "100-continue"

    # --- what the application does ---

    async def body(self, limit_bytes: int) -> bytes:
        """The body; never more than `limit_bytes` and what one read brings are held in memory.

        Raises `ApiError` 413 for a longer body and 408 for one that does not arrive in time, and
        `ClientLeft` when the client leaves before the end.
        """
        declared = self.headers.get("content-length", "")
        self._limit = limit_bytes
        if self.body_bytes > limit_bytes or (declared.isdigit() and int(declared) > limit_bytes):
            raise body_too_long(limit_bytes)
        if not self.whole and not self.left:
            await self._wait_for_body()
        if self.left:
            raise ClientLeft
        if self.body_bytes > limit_bytes:
            raise body_too_long(limit_bytes)
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def parts(self, limit_bytes: int) -> AsyncIterator[bytes]:
        """The body as it comes. The client waits while too little of it is taken.

        Raises `ApiError` 413 for a longer body and 408 when nothing more comes in time, and
        `ClientLeft` when the client leaves before the end.
        """
        self._in_parts = True
        while True:
            if self.left:
                raise ClientLeft
            if self.body_bytes > limit_bytes:
                raise body_too_long(limit_bytes)
            if self._parts:
                data, self._parts, self._untaken_bytes = b"".join(self._parts), [], 0
                self._line.resume()
                yield data
            elif self.whole:
                return
            else:
                await self._wait_for_body()

    async def _wait_for_body(self) -> None:
        if self._expects:
            self._expects = False
            self._line.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._news = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(limits.BODY_DEADLINE_S):
                await self._news
        except TimeoutError as error:
            raise body_too_late() from error

    def respond(self, response: Response) -> None:
        """Answer with a whole response."""
        self.start(response.status, response.all_headers(), has_length=True)
        self.end(response.body)

    def flow(self, on_full: Callable[[], None], on_room: Callable[[], None]) -> None:
        """Call `on_full` while the client reads too slowly, and `on_room` when it has caught up."""
        self.on_full, self.on_room = on_full, on_room
        if self._line.full:
            on_full()

    def start(self, status: int, headers: Headers, *, has_length: bool = False) -> None:
        """Begin the answer; `has_length`: `content-length` is among its headers."""
        self.begun = True
        if self._expects:  # whether its body still comes is the client's choice: the next request
            self.keep_alive = False  # could not be told from it
        framing = b""
        if not has_length and status not in _BODILESS and self.method != "HEAD":
            self._chunked = self._chunks_allowed
            self.keep_alive &= self._chunked
            framing = _CHUNKED if self._chunked else b""
        if not self.keep_alive:
            framing += _CLOSE
        self._head = head_of(status, headers, framing)

    def write(self, data: bytes) -> None:
        """Send a part of the answer's body, which is not empty."""
        if self._chunked:
            data = b"%b%x\r\n%b\r\n" % (self._head, len(data), data)
            self._head = b""
        elif self._head:
            data, self._head = self._head + (b"" if self.method == "HEAD" else data), b""
        self._line.send(data)

    def end(self, data: bytes = b"") -> None:
        """End the answer, with its last bytes."""
        if data:
            self.write(data)
        if self._chunked:
            self._line.send(self._head + b"0\r\n\r\n")
        elif self._head:
            self._line.send(self._head)
        self._head = b""
        self.ended = True
        self._parts.clear()
        if self._in_parts:
            self._line.resume()
        self.on_left = self.on_full = self.on_room = None
        if not self.left:
            self._line.answered()

    def abandon(self) -> None:
        """Give the request up without an answer, or in the midst of it."""
        self._line.abort()

    # --- what the connection tells ---

    def take(self, data: bytes) -> None:
        """A part of the body has come."""
        self.body_bytes += len(data)
        if self.ended:
            return  # answered already: nobody wants the rest
        if self._in_parts:
            self._parts.append(data)
            self._untaken_bytes += len(data)
            if self._untaken_bytes > _MOST_UNTAKEN_BYTES:
                self._line.pause()
            self._wake()
        elif self._limit is None or self.body_bytes <= self._limit:
            self._parts.append(data)
        else:
            self._parts.clear()
            self._wake()

    def take_end(self) -> None:
        """The body is whole."""
        self.whole = True
        self._expects = False
        self._wake()

    def lose(self) -> None:
        """The client has left."""
        if not self.left and not self.ended:
            self.left = True
            self._wake()
            if self.on_left is not None:
                self.on_left()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
