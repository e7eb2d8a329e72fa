"""Limits on what a peer may send, and the error for exceeding them or for invalid HTTP."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits for one message. A message that exceeds one is refused, and its connection ends."""

    head_bytes: int = 1 << 16
    """The request line, empty lines before it, and all headers."""
    headers: int = 256
    chunk_extension_bytes: int = 4096
    """All extensions of a body's chunks. RFC 9112, section 7.1.1, wants a limit; Go had none before
    CVE-2023-39326."""
    trailer_bytes: int = 8192
    """All trailers of a body. They are not used."""
    small_chunks: int = 4096
    """Beyond this number, chunks must have `chunk_bytes` on average: each one costs time."""
    chunk_bytes: int = 16
    ahead_bytes: int = 1 << 16
    """Bytes behind a request that is being answered. While more are held, reading pauses."""


BOUNDS = Bounds()


class RemoteProtocolError(Exception):
    """The peer sent invalid HTTP or exceeded a limit; a client gets `status`, then is cut off."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def malformed(what: str) -> RemoteProtocolError:
    return RemoteProtocolError(400, f"this is no valid HTTP/1.1 request: {what}")
