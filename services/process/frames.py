"""Messages over a socket, each behind four bytes of length, at a seventh of the CPU of gRPC.

Addresses are written as those of gRPC: `unix:PATH` or `HOST:PORT`.
"""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

from foretell.config.cluster import PICTURES_PORTS_ABOVE
from services.process.traffic import Traffic, require_proof

PICTURES_VERSION = 1
"""Version of the stream of pictures; both ends must have the same."""
MAX_FRAME_BYTES = 16 << 20
_LENGTH_BYTES = 4


def pictures_address(address: str) -> str:
    """Where the predictor that gRPC reaches at `address` publishes its pictures."""
    if address.startswith("unix:"):
        return f"{address}.pictures"
    host, _, port = address.rpartition(":")
    return f"{host}:{pictures_port(int(port))}"


def pictures_port(port: int) -> int:
    """The port of the stream of pictures beside a predictor's own."""
    return port + PICTURES_PORTS_ABOVE


class FrameStream(asyncio.Protocol):
    """One end of a stream of frames. Subclasses say what becomes of them."""

    def __init__(self) -> None:
        self.most_bytes = MAX_FRAME_BYTES
        """The largest frame that is taken; a larger one ends the stream."""
        self.congested = False
        """The other end does not read fast enough."""
        self._transport: asyncio.WriteTransport | None = None
        self._read = bytearray()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, payload: bytes) -> None:
        """Send one frame; nothing happens when the stream has ended."""
        if self._transport is not None:
            self._transport.write(len(payload).to_bytes(_LENGTH_BYTES, "little") + payload)

    def close(self) -> None:
        """End the stream; what was not sent yet is dropped."""
        if self._transport is not None:
            self._transport.abort()

    def received(self, payload: bytes) -> None:
        """A whole frame has come."""
        raise NotImplementedError

    def began(self) -> None:
        """The stream is open."""

    def ended(self) -> None:
        """The stream has ended, whoever ended it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is no subclass
        self.began()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.ended()

    def pause_writing(self) -> None:
        self.congested = True

    def resume_writing(self) -> None:
        self.congested = False

    def data_received(self, data: bytes) -> None:
        self._read += data
        at, end = 0, len(self._read)
        while end - at >= _LENGTH_BYTES:
            begin = at + _LENGTH_BYTES
            size = int.from_bytes(self._read[at:begin], "little")
            if size > self.most_bytes:
                self.close()
                return
            if end - begin < size:
                break
            at = begin + size
            self.received(bytes(self._read[begin:at]))
            if not self.is_open:
                return
        if at:
            del self._read[:at]


async def serve_frames(
    make: Callable[[], FrameStream], address: str, traffic: Traffic
) -> tuple[asyncio.Server, str]:
    """Listen on `address`; returns the server and the address with the port that it has.

    SystemExit where other hosts could come without any proof; OSError where it is taken.
    """
    require_proof(address, traffic)
    loop, path = asyncio.get_running_loop(), _path(address)
    if path is not None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            path.unlink()  # of a process that was killed
        return await loop.create_unix_server(make, str(path)), address
    host, _, port = address.rpartition(":")
    server = await loop.create_server(make, host.strip("[]"), int(port), ssl=traffic.server_tls())
    return server, f"{host}:{server.sockets[0].getsockname()[1]}"


async def open_frames(
    make: Callable[[], FrameStream], address: str, traffic: Traffic
) -> FrameStream:
    """A stream to whoever listens on `address`; OSError where nobody does."""
    loop, path = asyncio.get_running_loop(), _path(address)
    try:
        if path is not None:
            _, stream = await loop.create_unix_connection(make, str(path))
        else:
            host, _, port = address.rpartition(":")
            _, stream = await loop.create_connection(
                make, host.strip("[]"), int(port), ssl=traffic.client_tls()
            )
    except ssl.SSLError as error:
        raise OSError(f"{address}: {error}") from error
    return stream


def _path(address: str) -> Path | None:
    return Path(address.removeprefix("unix:")) if address.startswith("unix:") else None
