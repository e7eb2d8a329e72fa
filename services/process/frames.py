"""Messages over a socket, each after its length in four bytes, at a seventh of the CPU of gRPC.

Addresses are `unix:PATH` or `HOST:PORT`.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

from google.protobuf.message import DecodeError

from foretell import wire
from foretell.config.cluster import FRAMES_PORTS_ABOVE
from foretell.services.process.folders import free_ports, private_folder
from foretell.services.process.traffic import Traffic, require_proof
from foretell.v1 import predictor_pb2

logger = logging.getLogger(__name__)

FRAMES_VERSION = 1
"""Version of the protocol in frames; both ends must have the same."""
MAX_FRAME_BYTES = 16 << 20
HELLO_S, HELLO_BYTES = 5.0, 4096
"""Time limit and size limit of a client's first frame."""
_LENGTH_BYTES = 4


def frames_address(address: str) -> str:
    """Return where the predictor with this `address` accepts streams of frames."""
    if address.startswith("unix:"):
        return f"{address}.frames"
    host, _, port = address.rpartition(":")
    return f"{host}:{frames_port(int(port))}"


def predictor_socket(name: str) -> str:
    """Return the name of the socket of an engine's predictor, or of one rank's."""
    return frames_address(f"unix:{name}.predictor.sock").removeprefix("unix:")


def frames_port(port: int) -> int:
    """Return the frames port of a predictor with this `port`. `port` itself stays free: earlier
    versions served gRPC there, and both versions must find each other during an upgrade."""
    return port + FRAMES_PORTS_ABOVE


def with_free_port(address: str) -> str:
    """Replace port 0 in `address` by a port whose frames port is free.

    An address that is not of this machine is returned as it is: binding it reports the error.
    """
    host, _, port = address.rpartition(":")
    if address.startswith("unix:") or port != "0":
        return address
    with suppress(OSError):
        (found,) = free_ports(host.strip("[]"), 1)
        return f"{host}:{found - FRAMES_PORTS_ABOVE}"
    return address


def hello_of(traffic: Traffic) -> bytes:
    """Return the first frame that a client sends."""
    hello = predictor_pb2.Hello(version=FRAMES_VERSION, secret=traffic.secret.encode())
    return hello.SerializeToString()


class FrameStream(asyncio.Protocol):
    """One end of a stream of frames, which subclasses handle. It can be reopened after its end."""

    def __init__(self) -> None:
        self.most_bytes = MAX_FRAME_BYTES
        """The largest frame that is accepted; a larger one ends the stream."""
        self.congested = False
        """Whether the other end reads too slowly."""
        self._transport: asyncio.Transport | None = None
        self._read = bytearray()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, *payloads: bytes) -> None:
        """Send frames in one write; do nothing if the stream has ended.

        Waking the other end takes longer than all else: few writes are better than many.
        """
        if self._transport is not None:
            framed = [len(each).to_bytes(_LENGTH_BYTES, "little") + each for each in payloads]
            self._transport.write(b"".join(framed))

    def close(self) -> None:
        """End the stream; what was not sent yet is dropped."""
        if self._transport is not None:
            self._transport.abort()

    def finish(self) -> None:
        """End the stream after everything sent has been written out."""
        if self._transport is not None:
            self._transport.close()

    def received(self, payload: bytes) -> None:
        """Handle a whole frame."""
        raise NotImplementedError

    def began(self) -> None:
        """Called when the stream has opened."""

    def ended(self) -> None:
        """Called when either end has ended the stream."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self.congested = False
        self._read.clear()
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


class ServedStream(FrameStream):
    """The server's end: it accepts nothing before a hello with the shared secret."""

    def __init__(self, traffic: Traffic, most_bytes: int) -> None:
        """`most_bytes`: the largest frame after the hello."""
        super().__init__()
        self.most_bytes = HELLO_BYTES
        self._traffic = traffic
        self._most_heard_bytes = most_bytes
        self._is_known = False
        self._deadline: asyncio.TimerHandle | None = None

    def joined(self) -> bool:
        """Called when the client has authenticated; returning False ends the stream."""
        return True

    def left(self) -> None:
        """Called when the stream has ended, whether or not the client had joined."""

    def heard(self, payload: bytes) -> None:
        """Handle a frame after the hello; raises DecodeError or WireError if it is invalid."""
        raise NotImplementedError

    def began(self) -> None:
        self._deadline = asyncio.get_running_loop().call_later(HELLO_S, self.close)

    def ended(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self.left()

    def received(self, payload: bytes) -> None:
        try:
            if self._is_known:
                self.heard(payload)
            else:
                self._greeted(predictor_pb2.Hello.FromString(payload))
        except (DecodeError, wire.WireError) as error:
            logger.warning("a scheduler's stream ends: %s", error)
            self.close()

    def _greeted(self, hello: predictor_pb2.Hello) -> None:
        secret = self._traffic.secret
        if hello.version != FRAMES_VERSION or (secret and not self._traffic.knows(hello.secret)):
            raise wire.WireError("wrong version or secret")
        if self._deadline is not None:
            self._deadline.cancel()
        self._is_known, self.most_bytes = True, self._most_heard_bytes
        if not self.joined():
            self.close()


async def serve_frames(
    make: Callable[[], FrameStream], address: str, traffic: Traffic
) -> tuple[asyncio.Server, str]:
    """Listen on `address`; returns the server and the address with its actual port.

    SystemExit if other hosts could connect without authentication; OSError if it is taken.
    """
    require_proof(address, traffic)
    loop, path = asyncio.get_running_loop(), _path(address)
    if path is not None:
        private_folder(path.parent)
        with suppress(FileNotFoundError):
            path.unlink()  # left by a process that was killed
        return await loop.create_unix_server(make, str(path)), address
    host, _, port = address.rpartition(":")
    server = await loop.create_server(make, host.strip("[]"), int(port), ssl=traffic.server_tls())
    return server, f"{host}:{server.sockets[0].getsockname()[1]}"


async def open_frames(
    make: Callable[[], FrameStream], address: str, traffic: Traffic
) -> FrameStream:
    """Open a stream to the server at `address`; OSError if that fails."""
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
