"""Streams that clients may leave and come back to, and comments in silent streams.

Each event of a resumable stream has an id, and the latest events are held. A reconnect with
`Last-Event-ID` gets the events that it lacks and the rest of the stream. This follows the standard
of server-sent events, but over POST: a client that asks for it with `x-foretell-resumable: true`
sends its request again, with the id of the last event that it has.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Mapping

from foretell.http1.response import Headers
from foretell.openai.errors import ApiError
from foretell.services.http.exchange import Answering, Exchange

RESUMABLE_HEADER = "x-foretell-resumable"
LAST_EVENT_HEADER = "last-event-id"
MOST_STREAMS = 128
"""Most streams held by a replica; further ones are answered, but not held."""
MOST_BYTES = 1 << 20
"""Most bytes held of a stream: 128 MiB for all streams."""
AWAY_S = 30.0
"""How long a client that has left may come back, while the engine goes on. Also how long a stream
is held after its end."""
_BLANK = b"\n\n"
_COMMENT = b":" + _BLANK


def is_resumable(headers: Mapping[str, str]) -> bool:
    """Whether the client asks for a stream that it can come back to."""
    return headers.get(RESUMABLE_HEADER, "").strip().lower() == "true"


class HeldStreams:
    """The streams that a replica holds, by the secret in the ids of their events."""

    def __init__(self) -> None:
        self._streams: dict[str, HeldStream] = {}

    def hold(self, exchange: Exchange, tenant: str) -> "HeldStream | None":
        """Return a stream to answer in place of `exchange`; None if there are too many."""
        if len(self._streams) >= MOST_STREAMS:
            ended = next((each for each in self._streams.values() if each.ended), None)
            if ended is None:
                return None
            ended.forget()
        name = secrets.token_urlsafe(12)
        stream = HeldStream(name, tenant, exchange, lambda: self._streams.pop(name, None))
        self._streams[name] = stream
        return stream

    async def go_on(self, exchange: Exchange, tenant: str) -> None:
        """Answer a reconnect, until the stream ends or the client leaves again. Raises `ApiError`
        404 if the events that it lacks are not held for this tenant."""
        name, _, number = exchange.headers[LAST_EVENT_HEADER].strip().rpartition(".")
        stream = self._streams.get(name)
        is_number = number.isascii() and number.isdecimal() and len(number) < 16
        if stream is None or stream.tenant != tenant or not is_number:
            raise _not_held()
        await stream.attach(exchange, int(number))


class HeldStream(Answering):
    """An answer that outlives its client's connection. The relay uses it like an exchange."""

    def __init__(
        self, name: str, tenant: str, exchange: Exchange, forget: Callable[[], object]
    ) -> None:
        """`name` is a secret that only the client knows; `forget` removes the stream."""
        self.tenant = tenant
        self.begun, self.status = False, 0
        self._name = name
        self._exchange: Exchange | None = exchange
        self.forget = forget
        """Stop holding it."""
        self._gone: asyncio.Future[None] | None = None
        """Resolved when the stream is detached from the reconnected client."""
        self._headers: list[tuple[bytes, bytes]] = []
        self._is_held = False
        self.ended = False
        self._events: deque[bytes] = deque()
        self._bytes = 0
        self._last = 0
        """Number of the latest event."""
        self._sent = 0
        """Number of the latest event when the client left."""
        self._flow: tuple[Callable[[], None], Callable[[], None]] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._end_work = exchange.on_left
        exchange.on_left = self._leave

    # --- called by the relay ---

    @property
    def left(self) -> bool:
        """Whether the client has left and cannot come back."""
        return self._exchange is not None and self._exchange.left

    def flow(self, on_full: Callable[[], None], on_room: Callable[[], None]) -> None:
        self._flow = (on_full, on_room)
        if self._exchange is not None:
            self._exchange.flow(on_full, on_room)

    def start(self, status: int, headers: Headers, *, has_length: bool = False) -> None:
        """Begin the answer: a stream is held, a whole answer is not."""
        self._is_held = not has_length
        self.begun, self.status, self._headers = True, status, list(headers)
        if self._is_held:
            self._headers.append((RESUMABLE_HEADER.encode(), b"true"))
        if self._exchange is not None:
            self._exchange.start(status, self._headers, has_length=has_length)

    def write(self, data: bytes) -> None:
        """Send a part of the answer; a stream is held only while parts are whole events."""
        if self._is_held and not data.endswith(_BLANK):
            self._let_go()
        if not self._is_held:
            self._send(data)
            return
        *events, _ = data.split(_BLANK)
        self._send(b"".join([self._numbered(event + _BLANK) for event in events]))
        if self._exchange is None and self._sent < self._before:
            self._give_up()  # what the client lacks is no longer held

    def end(self, data: bytes = b"") -> None:
        if data:
            self.write(data)
        self.ended = True
        if self._exchange is not None:
            self._exchange.end()
            self._detach()
        if self._is_held:
            self._after(self.forget)
        else:
            self.forget()

    def abandon(self) -> None:
        if self._exchange is not None:
            self._exchange.abandon()

    def _let_go(self) -> None:
        """Stop holding a stream of partial events: its client cannot come back to it."""
        self._is_held = False
        self.forget()
        if self._exchange is None:
            self._give_up()

    def over(self) -> None:
        """The relay is done: drop the stream, unless the answer has ended."""
        if not self.ended:
            self._end_wait()
            if self._exchange is not None:
                self._exchange.on_left = None
            self.forget()
            if self._gone is not None and self._exchange is not None:
                self._exchange.abandon()
            self._detach()

    # --- clients that come back ---

    async def attach(self, exchange: Exchange, number: int) -> None:
        """Send a client the events after `number`, and all that follow."""
        if not (self._is_held and self._before <= number <= self._last):
            raise _not_held()
        if self._exchange is not None:  # the client has noticed first that it is lost
            former = self._exchange
            self._detach()
            former.abandon()
        exchange.start(self.status, self._headers)
        missing = list(self._events)[number - self._before :]
        exchange.write(b"".join(missing) or _COMMENT)  # the head goes out with the first bytes
        if self.ended:
            exchange.end()
            return
        self._end_wait()
        self._exchange = exchange
        self._gone = asyncio.get_running_loop().create_future()
        exchange.on_left = self._leave
        if self._flow is not None:
            self._flow[1]()
            exchange.flow(*self._flow)
        await self._gone

    def _leave(self) -> None:
        if not self._is_held:  # it has no event to come back to
            self._give_up()
            return
        self._detach()
        if self._flow is not None:
            self._flow[1]()  # no client reads too slowly any more
        self._after(self._give_up)

    def _give_up(self) -> None:
        self._end_wait()
        self.forget()
        if self._end_work is not None:
            self._end_work()

    def _detach(self) -> None:
        self._exchange, self._sent = None, self._last
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)
        self._gone = None

    # --- events ---

    @property
    def _before(self) -> int:
        """Number of the event before the oldest that is held."""
        return self._last - len(self._events)

    def _numbered(self, event: bytes) -> bytes:
        self._last += 1
        event = b"id: %b.%d\n%b" % (self._name.encode(), self._last, event)
        self._events.append(event)
        self._bytes += len(event)
        while self._bytes > MOST_BYTES and len(self._events) > 1:
            self._bytes -= len(self._events.popleft())
        return event

    def _send(self, data: bytes) -> None:
        if data and self._exchange is not None:
            self._exchange.write(data)

    def _after(self, call: Callable[[], object]) -> None:
        self._end_wait()
        self._deadline = asyncio.get_running_loop().call_later(AWAY_S, call)

    def _end_wait(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _not_held() -> ApiError:
    return ApiError(
        404,
        "this replica does not hold the stream that 'Last-Event-ID' names, or not from there on: "
        "try another replica, or send your request without 'Last-Event-ID' to begin anew",
        code="stream_not_held",
    )


_EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")


class KeptAlive(Answering):
    """A stream with a comment after each silent interval, or after every interval if the remaining
    latencies are known. Comments may come before the first token: then the headers are sent with
    the first comment, and an error is sent as an event of the stream."""

    def __init__(
        self,
        answer: Answering,
        request_id: str,
        path: str,
        interval_s: float,
        left: Callable[[], str] = str,
    ) -> None:
        """`left` returns the remaining latencies as text, "" where not known."""
        self.begun, self.status = False, 0
        self._answer = answer
        self._request_id, self._path = request_id, path
        self._interval_s = interval_s
        self._what_is_left = left
        self._has_head = False
        self._is_error = False
        self._is_quiet = True
        self._between_events = True
        self._timer = asyncio.get_running_loop().call_later(interval_s, self._look)

    def _look(self) -> None:
        left = self._what_is_left() if self._between_events and not self.left else ""
        if (self._is_quiet or left) and self._between_events and not self.left:
            if not (self._has_head or self.begun):
                self._has_head = True
                self._answer.start(200, [_EVENTS, (b"x-request-id", self._request_id.encode())])
            self._answer.write(f": keep-alive{left}\n\n".encode())
        self._is_quiet = True
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._look)

    @property
    def left(self) -> bool:
        return self._answer.left

    def flow(self, on_full: Callable[[], None], on_room: Callable[[], None]) -> None:
        self._answer.flow(on_full, on_room)

    def start(self, status: int, headers: Headers, *, has_length: bool = False) -> None:
        self.begun, self.status = True, status
        if self._has_head:
            self._is_error = has_length
        else:
            self._answer.start(status, headers, has_length=has_length)
            self._between_events &= not has_length

    def write(self, data: bytes) -> None:
        self._is_quiet, self._between_events = False, data.endswith(b"\n\n")
        self._answer.write(data)

    def end(self, data: bytes = b"") -> None:
        self._timer.cancel()
        if self._is_error:
            name = b"" if self._path.endswith("completions") else b"event: error\n"
            lines = b"\n".join(b"data: " + line for line in data.splitlines())
            data = b"%b%b\n\n" % (name, lines)
        self._answer.end(data)

    def end_with(self, error: ApiError, path: str, request_id: str, number: int = 0) -> None:
        self.begun |= self._has_head
        super().end_with(error, path, request_id, number)

    def abandon(self) -> None:
        self._answer.abandon()

    def over(self) -> None:
        self._timer.cancel()
        self._answer.over()
