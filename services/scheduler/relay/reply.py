"""The response of one request as the client gets it."""

from dataclasses import replace

from services.scheduler.http.asgi import RawHeaders, Receive, Send
from services.scheduler.http.errors import ApiError


class Reply:
    """A response that is begun once and from then on only continued."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self.started = False
        """The client may have seen a part: from here on nothing can be repeated."""
        self.ended = False
        self.status = 0
        """What metrics count: the HTTP status, 502 for an answer that broke off, 499 for nobody."""

    async def start(self, status: int, headers: RawHeaders) -> None:
        """Send the status and the headers."""
        assert not self.started
        self.started = True
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def send(self, data: bytes, *, last: bool = False) -> None:
        """Send a part of the body; `last` ends the response."""
        assert self.started
        self.ended = last
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    async def fail(self, error: ApiError) -> None:
        """End the response with `error`: as its whole, or as the last event of its stream."""
        if self.started:
            self.status = error.status
            await self.send(error.sse_event(), last=True)
            return
        response = error.response()
        headers = {**response.headers, "x-request-id": self._request_id}
        await self.start(error.status, replace(response, headers=headers).raw_headers())
        await self.send(response.body, last=True)


async def disconnected(receive: Receive) -> None:
    """Wait until the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
