"""A stream that says so where it has nothing to say."""

import asyncio
from collections.abc import Callable

from foretell.services.scheduler.api.errors import ApiError
from foretell.services.scheduler.http.exchange import Answering
from foretell.services.scheduler.http1.response import Headers

_COMMENT = b": keep-alive\n\n"
_EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")


class KeptAlive(Answering):
    """A stream that gets a comment after a silence: before its first token, too, when its headers
    go out with the first comment. An error is then told in the stream."""

    def __init__(self, answer: Answering, request_id: str, path: str, interval_s: float) -> None:
        self.begun, self.status = False, 0
        self._answer = answer
        self._request_id, self._path = request_id, path
        self._interval_s = interval_s
        self._has_head = False
        self._is_error = False
        self._is_quiet = True
        self._between_events = True
        self._timer = asyncio.get_running_loop().call_later(interval_s, self._look)

    def _look(self) -> None:
        if self._is_quiet and self._between_events and not self.left:
            if not (self._has_head or self.begun):
                self._has_head = True
                self._answer.start(200, [_EVENTS, (b"x-request-id", self._request_id.encode())])
            self._answer.write(_COMMENT)
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
