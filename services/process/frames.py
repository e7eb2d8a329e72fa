"""Messages over a socket, each behind four bytes of length, at a seventh of the CPU of gRPC.

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
"""Version of what is said in frames; both ends must have the same."""
MAX_FRAME_BYTES = 16 << 20
HELLO_S, HELLO_BYTES = 5.0, 4096
"""The time that a client has for its first frame, and the most bytes of it."""
_LENGTH_BYTES = 4


def frames_address(address: str) -> str:
    """Where the predictor of that `address` takes streams of frames."""
    if address.startswith("unix:"):
        return f"{address}.frames"
    host, _, port = address.rpartition(":")
    return f"{host}:{frames_port(int(port))}"


def predictor_socket(name: str) -> str:
    """The name of the socket of an engine's predictor, or of one of its ranks."""
    return frames_address(f"unix:{name}.predictor.sock").removeprefix("unix:")


def frames_port(port: int) -> int:
    """The port for streams of frames of a predictor with that port, which stays free: predictors of
    before answered gRPC there, and both versions must find each other in an upgrade."""
    return port + FRAMES_PORTS_ABOVE


def with_free_port(address: str) -> str:
    """`address` with a port in place of 0 whose port for frames is free.

    An address that is not of this machine is returned as it is: binding it says what is wrong.
    """
    host, _, port = address.rpartition(":")
    if address.startswith("unix:") or port != "0":
        return address
    with suppress(OSError):
        (found,) = free_ports(host.strip("[]"), 1)
        return f"{host}:{found - FRAMES_PORTS_ABOVE}"
    return address


def hello_of(traffic: Traffic) -> bytes:
    """The first frame of the client of a stream."""
    hello = predictor_pb2.Hello(version=FRAMES_VERSION, secret=traffic.secret.encode())
    return hello.SerializeToString()


class FrameStream(asyncio.Protocol):
    """One end of a stream of frames. Subclasses say what becomes of them. When it has ended, it may
    be opened again."""

    def __init__(self) -> None:
        self.most_bytes = MAX_FRAME_BYTES
        """The largest frame that is taken; a larger one ends the stream."""
        self.congested = False
        """The other end does not read fast enough."""
        self._transport: asyncio.Transport | None = None
        self._read = bytearray()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, *payloads: bytes) -> None:
        """Send frames, which arrive together; nothing happens when the stream has ended.

        To wake the other end takes longer than all else: few writes are better than many.
        """
        if self._transport is not None:
            framed = [len(each).to_bytes(_LENGTH_BYTES, "little") + each for each in payloads]
            self._transport.write(b"".join(framed))

    def close(self) -> None:
        """End the stream; what was not sent yet is dropped."""
        if self._transport is not None:
            self._transport.abort()

    def finish(self) -> None:
        """End the stream once what was sent has left."""
        if self._transport is not None:
            self._transport.close()

    def received(self, payload: bytes) -> None:
        """A whole frame has come."""
        raise NotImplementedError

    def began(self) -> None:
        """The stream is open."""

    def ended(self) -> None:
        """The stream has ended, by either end."""

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
    """The server's end: nothing is read before a hello with the shared secret."""

    def __init__(self, traffic: Traffic, most_bytes: int) -> None:
        """`most_bytes`: the largest frame after the hello."""
        super().__init__()
        self.most_bytes = HELLO_BYTES
        self._traffic = traffic
        self._most_heard_bytes = most_bytes
        self._is_known = False
        self._deadline: asyncio.TimerHandle | None = None

    def joined(self) -> bool:
        """The client has proved who it is; False ends the stream."""
        return True

    def left(self) -> None:
        """The stream has ended, whether the client had joined or not."""

    def heard(self, payload: bytes) -> None:
        """A frame has come; raises DecodeError or WireError where it makes no sense."""
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
    """Listen on `address`; returns the server and the address with the port that it has.

    SystemExit where other hosts could come without any proof; OSError where it is taken.
    """
    require_proof(address, traffic)
    loop, path = asyncio.get_running_loop(), _path(address)
    if path is not None:
        private_folder(path.parent)
        with suppress(FileNotFoundError):
            path.unlink()  # of a process that was killed
        return await loop.create_unix_server(make, str(path)), address
    host, _, port = address.rpartition(":")
    server = await loop.create_server(make, host.strip("[]"), int(port), ssl=traffic.server_tls())
    return server, f"{host}:{server.sockets[0].getsockname()[1]}"


async def open_frames(
    make: Callable[[], FrameStream], address: str, traffic: Traffic
) -> FrameStream:
    """A stream to the server at `address`; OSError where there is none."""
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
