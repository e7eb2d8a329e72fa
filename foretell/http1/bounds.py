"""What is refused of what comes: what is no HTTP, and more beside bodies than is collected."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bounds:
    """Each is for one message. A message beyond one is refused, and its connection ends."""

    head_bytes: int = 1 << 16
    """The first line, all headers and empty lines before them."""
    headers: int = 256
    chunk_extension_bytes: int = 4096
    """All extensions of a body's chunks. RFC 9112, section 7.1.1, wants a limit; Go had none before
    CVE-2023-39326."""
    trailer_bytes: int = 8192
    """All trailers of a body, which nobody reads."""
    small_chunks: int = 4096
    """From so many on, chunks must have `chunk_bytes` on average: each takes time."""
    chunk_bytes: int = 16
    ahead_bytes: int = 1 << 16
    """What follows a request that is being answered. When more has come, no more is read."""


BOUNDS = Bounds()


class RemoteProtocolError(Exception):
    """The peer sent what nobody has to read; a client's connection ends with `status`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def malformed(what: str) -> RemoteProtocolError:
    return RemoteProtocolError(400, f"this is no valid HTTP/1.1 request: {what}")
