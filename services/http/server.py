"""An HTTP server: its listening sockets, connections and tasks."""

import asyncio
import logging
import resource
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any

from foretell.openai.errors import internal_error
from foretell.services.http.connection import STALL_S, ClientConnection
from foretell.services.http.exchange import Exchange
from foretell.services.process.logs import about

logger = logging.getLogger(__name__)

Application = Callable[[Exchange], Awaitable[None]]
"""Called as soon as a request's head has come, and cancelled if its client leaves before it has
the whole answer, unless `Exchange.on_left` is set to something else."""

_SWEEP_S = 1.0
_COMPLAIN_EVERY_S = 10.0
_BACKLOG = 2048
_ACCEPTED_AT_ONCE = 8
"""Beginning a handshake takes some 0.5 ms; after so many, other tasks run."""
_ACCEPT_AGAIN_S = 0.1
_HANDSHAKE_S = 20.0
_BUFFER_LOCK = 72
"""Linux' SO_BUF_LOCK (5.15), which Python does not name: 0 lets the buffers' sizes adapt again."""
_SHUTDOWN_S = 3600.0
"""Time for a client to read its answer to the end. The connection itself finds out sooner if the
client no longer reads; the event loop's default of half a minute would cut slow clients off."""
_LAST_HANDSHAKE_S = 5.0
"""For the handshakes of clients that are not yet accepted when the server shuts down."""


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket, and the TLS context of its connections, if they are encrypted."""

    socket: socket.socket
    tls: ssl.SSLContext | None = None

    def encryption(self, handshake_s: float) -> dict[str, Any]:
        """The event loop's arguments for TLS; `handshake_s`: longest time for a handshake."""
        if self.tls is None:
            return {}
        times = {"ssl_handshake_timeout": handshake_s, "ssl_shutdown_timeout": _SHUTDOWN_S}
        return {"ssl": self.tls, **times}


class Server:
    """All connections of clients, and the tasks that answer them."""

    def __init__(self, application: Application) -> None:
        self.connections: set[ClientConnection] = set()
        self.draining = False
        """The server shuts down: each connection ends with its current request."""
        self._application = application
        self._tasks: set[asyncio.Task[None]] = set()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._no_connection = asyncio.Event()
        self._complained_s = -inf

    async def run(
        self,
        listeners: list[Listener],
        stop: asyncio.Event,
        *,
        on_ready: Callable[[], None],
        drain_s: float,
    ) -> None:
        """Serve on `listeners` until `stop`; requests in progress get `drain_s` to end."""
        loop = asyncio.get_running_loop()
        listening = []
        for each in listeners:
            _notice_lost_clients(each.socket)
            if each.tls is not None:
                each.socket.setblocking(False)
                each.socket.listen(_BACKLOG)
                self._listen(each)
            else:
                made = loop.create_server(
                    lambda: ClientConnection(self), sock=each.socket, backlog=_BACKLOG
                )
                listening.append(await made)
        sweeping = asyncio.create_task(self._sweep())
        on_ready()
        try:
            await stop.wait()
        finally:
            self.draining = True
            waiting = [(each, client) for each in listeners for client in _accepted(each.socket)]
            for server in listening:
                server.close()
            for each in listeners:
                if each.tls is not None:
                    loop.remove_reader(each.socket)
                    each.socket.close()
            taking = (self._take(each, client, _LAST_HANDSHAKE_S) for each, client in waiting)
            await asyncio.gather(*taking)
            if self._handshakes:
                await asyncio.wait(self._handshakes, timeout=_LAST_HANDSHAKE_S)
            for connection in list(self.connections):
                connection.retire()
            await self._drain(drain_s)
            sweeping.cancel()
            with suppress(asyncio.CancelledError):
                await sweeping

    def _listen(self, listener: Listener) -> None:
        """Accept TLS clients here: an event loop that accepts reports them only after their
        handshake, but they take descriptors before that."""
        if not self.draining:
            asyncio.get_running_loop().add_reader(listener.socket, self._accept, listener)

    def _accept(self, listener: Listener) -> None:
        loop = asyncio.get_running_loop()
        clients = _accepted(listener.socket, _ACCEPTED_AT_ONCE)
        if not clients:  # they have left, or others took the last descriptors
            loop.remove_reader(listener.socket)
            loop.call_later(_ACCEPT_AGAIN_S, self._listen, listener)
        for client in clients:
            if self._is_crowded(client.fileno()):
                client.close()
                continue
            handshake = loop.create_task(self._take(listener, client, _HANDSHAKE_S))
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)

    async def _take(self, listener: Listener, client: socket.socket, handshake_s: float) -> None:
        """Make a connection. A failed handshake is ignored: its client has asked for nothing.

        Before it has completed, the client's buffer does not grow: the event loop reads all of it
        at once, and OpenSSL takes milliseconds for 64 KiB of one-byte records.
        """
        _lock_buffer(client)
        with suppress(OSError):  # errors of TLS are OSErrors, too
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: ClientConnection(self), client, **listener.encryption(handshake_s)
            )
            client.setsockopt(socket.SOL_SOCKET, _BUFFER_LOCK, 0)

    async def _drain(self, drain_s: float) -> None:
        if self.connections:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._no_connection.wait(), drain_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in list(self.connections):
            connection.abort()

    def opened(self, connection: ClientConnection, transport: asyncio.Transport) -> None:
        """Add a connection. It is aborted if file descriptors run out, so that some are left for
        the requests of existing clients."""
        self._no_connection.clear()
        self.connections.add(connection)
        if self._is_crowded(transport.get_extra_info("socket").fileno()):
            transport.abort()

    def _is_crowded(self, number: int) -> bool:
        """Whether descriptors run out. `number`: a new one, so about as many are in use."""
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if most == resource.RLIM_INFINITY or number < most - most // 4:
            return False
        self._complain(number, most)
        return True

    def _complain(self, number: int, most: int) -> None:
        now_s = time.monotonic()
        if now_s > self._complained_s + _COMPLAIN_EVERY_S:
            self._complained_s = now_s
            text = "file descriptors run out, new clients are turned away: some %d of %d are in use"
            logger.error("%s; raise the limit, as with 'ulimit -n'", text % (number, most))

    def closed(self, connection: ClientConnection) -> None:
        """Remove a connection that has ended."""
        self.connections.discard(connection)
        if self.draining and not self.connections:
            self._no_connection.set()

    def begin(self, exchange: Exchange) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        exchange.on_left = task.cancel

    async def _answer(self, exchange: Exchange) -> None:
        try:
            await self._application(exchange)
        except Exception:
            logger.exception(
                "%s %s failed", exchange.method, exchange.path, extra=about(exchange.request_id)
            )
            if not exchange.begun:
                exchange.respond(internal_error().response())
        finally:
            if not exchange.ended:  # the client has left, the server shuts down, or there is a bug
                exchange.abandon()

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_S)
            now_s = loop.time()
            for connection in [each for each in self.connections if each.deadline_s < now_s]:
                connection.overdue()


def _accepted(sock: socket.socket, most: int = _BACKLOG) -> list[socket.socket]:
    """Accept up to `most` waiting clients, which would be lost with the listening socket."""
    clients: list[socket.socket] = []
    with suppress(OSError):
        while len(clients) < most:
            client, _ = sock.accept()
            client.setblocking(False)
            clients.append(client)
    return clients


def _lock_buffer(client: socket.socket) -> None:
    """Keep the receive buffer as large as it is, if that can be undone."""
    with suppress(OSError):
        client.getsockopt(socket.SOL_SOCKET, _BUFFER_LOCK)  # older kernels know no such option
        size = client.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size // 2)  # Linux doubles it


def _notice_lost_clients(sock: socket.socket) -> None:
    """Have the kernel find out about clients whose hosts have failed."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # accepted sockets inherit it
    for name, value in (
        ("TCP_KEEPIDLE", 60),
        ("TCP_KEEPINTVL", 15),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", int(1000 * STALL_S)),
    ):
        if hasattr(socket, name):  # not on every platform
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
