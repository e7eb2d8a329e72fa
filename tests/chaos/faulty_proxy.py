"""A proxy in front of an engine that injects faults of engines and networks.

It forwards bytes and parses only as much HTTP as it must: where a request ends, and where an
answer's first event ends. Health probes pass unless the whole network is cut, so that a broken
engine looks healthy under all other faults.
"""

import asyncio
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

_END = b"0\r\n\r\n"
_DRIP_BYTES, _DRIP_PAUSE_S = 64, 0.005


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to generation requests."""

    status: int = 0
    """The proxy answers with this status; 0: it does not."""
    resets: bool = False
    """The connection is reset once the request has arrived."""
    withholds: bool = False
    """Nothing of the answer passes."""
    withholds_rest: bool = False
    """Only a stream's first event, or an unstreamed answer's head, passes."""
    drips: bool = False
    """The answer passes in small pieces."""
    breaks_after: Callable[[bytes], int] | None = None
    """How many bytes of the answer pass before a reset; called with the request's head."""


NONE = Fault()


class FaultyProxy:
    """Listens on its own port and forwards to the engine's."""

    def __init__(self, engine_port: int) -> None:
        self.fault = NONE
        self.hits = 0
        """Requests that met the fault."""
        self.port = 0
        self._engine_port = engine_port
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._connected_network = asyncio.Event()
        self._connected_network.set()

    def set(self, fault: Fault) -> None:
        """Apply `fault` to requests from now on, and restart the count of `hits`."""
        self.fault, self.hits = fault, 0

    def cut(self) -> None:
        """Hold all bytes in both directions, without closing any connection."""
        self._connected_network.clear()

    def mend(self) -> None:
        """End the `cut`."""
        self._connected_network.set()

    async def start(self) -> None:
        """Listen; after a `stop`, on the same port again."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Refuse new connections, and reset the open ones."""
        assert self._server is not None
        self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._connected_network.wait()
            engine = await asyncio.open_connection("127.0.0.1", self._engine_port)
            try:
                await _Carrier(self, (reader, writer), engine).run()
            finally:
                engine[1].transport.abort()
        except (OSError, asyncio.IncompleteReadError):
            return  # one side closed the connection
        except asyncio.CancelledError:
            return  # cancelled by stop(); the asyncio server need not see it
        finally:
            self._connections.discard(task)
            _reset(writer)

    async def passing(self) -> None:
        """Wait until the network lets bytes pass."""
        await self._connected_network.wait()


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Carrier:
    """Forwards one connection's requests to the engine, and the answers back."""

    def __init__(self, proxy: FaultyProxy, client: Streams, engine: Streams) -> None:
        self._proxy = proxy
        self._from_client, self._to_client = client
        self._from_engine, self._to_engine = engine
        self._fault = NONE
        self._silent = False
        self._left_bytes = sys.maxsize
        """Bytes of the answer that may still pass."""
        self._answered = False
        """Whether the engine has sent the end of a withheld answer."""

    async def run(self) -> None:
        """Forward until either side has closed."""
        tasks = [asyncio.create_task(each) for each in (self._requests(), self._answers())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _requests(self) -> None:
        while True:
            head = await self._from_client.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
            body = await self._from_client.readexactly(int(length or 0))
            await self._proxy.passing()
            self._fault = self._proxy.fault if head.startswith(b"POST") else NONE
            if self._fault is not NONE:
                self._proxy.hits += 1
            self._silent = self._fault.withholds
            breaks_after = self._fault.breaks_after
            self._left_bytes = breaks_after(head) if breaks_after else sys.maxsize
            if self._fault.resets:
                return
            if self._fault.status:
                await self._refuse(self._fault.status)
                continue
            self._to_engine.write(head + body)
            await self._to_engine.drain()

    async def _refuse(self, status: int) -> None:
        body = b'{"error":{"message":"injected","code":%d}}' % status
        head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self._to_client.write(head % (status, len(body)) + body)
        await self._to_client.drain()

    async def _answers(self) -> None:
        while data := await self._from_engine.read(1 << 16):
            await self._proxy.passing()
            if self._silent:
                self._answered = data.endswith(_END)
                continue
            if self._fault.withholds_rest:
                is_stream = b"event-stream" in data
                self._silent = not is_stream and b"\r\n\r\n" in data
                if b"data: {" in data:
                    data = data[: data.index(b"data: {")] + _first_event(data)
                    self._silent = True
            await self._pass_on(data)

        if (
            self._silent and self._answered
        ):  # keep the client's connection open even if the engine closes
            await asyncio.Event().wait()

    async def _pass_on(self, data: bytes) -> None:
        data, self._left_bytes = data[: self._left_bytes], self._left_bytes - len(data)
        size = _DRIP_BYTES if self._fault.drips else max(1, len(data))
        for at in range(0, len(data), size):
            self._to_client.write(data[at : at + size])
            await self._to_client.drain()
            if self._fault.drips:
                await asyncio.sleep(_DRIP_PAUSE_S)
        if self._left_bytes <= 0:
            raise ConnectionResetError


def _first_event(data: bytes) -> bytes:
    event, end, _ = data[data.index(b"data: {") :].partition(b"\n\n")
    return event + end


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with a TCP reset."""
    sock = writer.get_extra_info("socket")
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
