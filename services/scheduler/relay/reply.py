"""The response of one request as the client gets it."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from foretell.services.scheduler.api.errors import ApiError
from foretell.services.scheduler.api.surface import Endpoint
from foretell.services.scheduler.http.exchange import Answering
from foretell.services.scheduler.http1.response import Headers


class Reply:
    """A response that is begun once and from then on only continued."""

    def __init__(self, exchange: Answering, request_id: str, endpoint: Endpoint) -> None:
        self._exchange = exchange
        self._request_id = request_id
        self._path = endpoint.path
        self.started = False
        """The client may have seen a part: from here on nothing can be repeated."""
        self.status = 0
        """What metrics count: the HTTP status, 502 for an answer that broke off, 499 for nobody."""

    def flow(self, on_full: Callable[[], None], on_room: Callable[[], None]) -> None:
        """Call `on_full` while the client reads too slowly, and `on_room` when it has caught up."""
        self._exchange.flow(on_full, on_room)

    def start(self, status: int, headers: Headers, *, has_length: bool) -> None:
        """Begin with the status and the headers."""
        assert not self.started
        self.started = True
        self.status = status
        self._exchange.start(status, headers, has_length=has_length)

    def send(self, data: bytes) -> None:
        """Send a part of the body."""
        assert self.started
        self._exchange.write(data)

    def end(self, data: bytes = b"") -> None:
        """End the response with the last bytes of its body."""
        assert self.started
        self._exchange.end(data)

    def break_off(self) -> None:
        """End a response that has begun, and cannot say why it ends, with its connection."""
        self.status = 502
        self._exchange.on_left = None  # it is not the client that leaves
        self._exchange.abandon()

    def over(self) -> None:
        """Nothing more is sent."""

    def fail(self, error: ApiError, sequence_number: int = 0) -> None:
        """End the response with `error`: as its whole, or as the last event of its stream, of which
        it is the event `sequence_number`."""
        self.status = error.status
        if self.started:
            self.end(error.sse_event(self._path, sequence_number))
            return
        self.started = True
        response = error.response(self._path)
        headers = {**response.headers, "x-request-id": self._request_id}
        self._exchange.respond(replace(response, headers=headers))


_COMMENT = b": keep-alive\n\n"
_EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")


class KeptAlive(Reply):
    """The response of a stream that says so where it has nothing to say: before its first token,
    too, when its headers go out with the first comment. An error is then told in the stream."""

    def __init__(
        self, exchange: Answering, request_id: str, endpoint: Endpoint, interval_s: float
    ) -> None:
        super().__init__(exchange, request_id, endpoint)
        self._interval_s = interval_s
        self._has_head = False
        self._is_error = False
        """Its body is no stream."""
        self._is_quiet = True
        """Nothing was sent since the last look."""
        self._between_events = True
        self._timer = asyncio.get_running_loop().call_later(interval_s, self._look)

    def _look(self) -> None:
        if self._is_quiet and self._between_events and not self._exchange.left:
            if not (self._has_head or self.started):
                self._has_head = True
                headers = [_EVENTS, (b"x-request-id", self._request_id.encode())]
                self._exchange.start(200, headers)
            self._exchange.write(_COMMENT)
        self._is_quiet = True
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._look)

    def start(self, status: int, headers: Headers, *, has_length: bool) -> None:
        """Begin with the status and the headers, as far as they have not been sent."""
        if not self._has_head:
            super().start(status, headers, has_length=has_length)
            self._between_events &= not has_length
            return
        assert not self.started
        self.started, self.status, self._is_error = True, status, has_length

    def send(self, data: bytes) -> None:
        """Send a part of the body."""
        self._is_quiet, self._between_events = False, data.endswith(b"\n\n")
        super().send(data)

    def end(self, data: bytes = b"") -> None:
        """End the response with the last bytes of its body."""
        self.over()
        if self._is_error:
            name = b"" if self._path.endswith("completions") else b"event: error\n"
            lines = b"\n".join(b"data: " + line for line in data.splitlines())
            data = b"%b%b\n\n" % (name, lines)
        super().end(data)

    def fail(self, error: ApiError, sequence_number: int = 0) -> None:
        """End the response with `error`: as its whole, or as the last event of its stream."""
        self.over()
        self.started |= self._has_head
        super().fail(error, sequence_number)

    def over(self) -> None:
        """Nothing more is sent."""
        self._timer.cancel()


def reply_to(
    exchange: Answering, request_id: str, endpoint: Endpoint, keep_alive_s: float
) -> Reply:
    """The response to a request; `keep_alive_s`: after so long a silence it says so; 0: never."""
    if keep_alive_s > 0:
        return KeptAlive(exchange, request_id, endpoint, keep_alive_s)
    return Reply(exchange, request_id, endpoint)
