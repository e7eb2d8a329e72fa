"""Whole responses, and the heads of relayed answers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

Headers = Iterable[tuple[bytes, bytes]]

_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}


@dataclass(frozen=True, slots=True)
class Response:
    """A response that is sent in one piece."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)

    def all_headers(self) -> list[tuple[bytes, bytes]]:
        if self.status == 204:  # RFC 9110, section 8.6: no length where there is no content
            return [(name.encode(), value.encode()) for name, value in self.headers.items()]
        headers = {
            "content-length": str(len(self.body)),
            "content-type": self.content_type,
            **self.headers,
        }
        return [(name.encode(), value.encode()) for name, value in headers.items()]


def head_of(status: int, headers: Headers, framing: bytes) -> bytes:
    """The head of a response; `framing` are whole header lines that say how the body ends."""
    line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
    lines = [b"%b: %b\r\n" % header for header in headers]
    return b"%b%b%b\r\n" % (line, b"".join(lines), framing)
