"""The response of one request as the client gets it."""

from collections.abc import Callable
from dataclasses import replace

from services.scheduler.http.errors import ApiError
from services.scheduler.http.exchange import Answering
from services.scheduler.http.response import Headers
from services.scheduler.http.surface import Endpoint


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
