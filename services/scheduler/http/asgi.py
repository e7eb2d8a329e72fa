"""ASGI without a framework: headers in, whole responses out."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
RawHeaders = list[tuple[bytes, bytes]]


class ClientLeft(Exception):
    """The client has closed its connection before its request was whole."""


@dataclass(frozen=True, slots=True)
class Response:
    """A response that is sent in one piece."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)

    def raw_headers(self) -> RawHeaders:
        """All headers as ASGI wants them."""
        headers = {
            "content-length": str(len(self.body)),
            "content-type": self.content_type,
            **self.headers,
        }
        return [(name.encode(), value.encode()) for name, value in headers.items()]

    async def send(self, send: Send) -> None:
        """Answer a request with it."""
        start = {
            "type": "http.response.start",
            "status": self.status,
            "headers": self.raw_headers(),
        }
        await send(start)
        await send({"type": "http.response.body", "body": self.body})


def headers_of(scope: Scope) -> dict[str, str]:
    """A request's headers by their names in lower case; of several with one name, the first."""
    latest_first = reversed(scope["headers"])
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in latest_first}
