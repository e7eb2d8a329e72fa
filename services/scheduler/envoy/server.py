"""Serves gateways: the endpoint picker protocol of the Gateway API Inference Extension."""

import asyncio
import hmac
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from foretell.config.settings import SchedulerSettings
from foretell.services.process.traffic import METADATA_KEY, is_loopback
from foretell.services.scheduler.app import App
from foretell.services.scheduler.envoy.addresses import Addresses
from foretell.services.scheduler.envoy.calls import (
    NOT_FOUND,
    UNAUTHENTICATED,
    UNIMPLEMENTED,
    CallHandler,
    CallStream,
)
from foretell.services.scheduler.envoy.exchange import PickerExchange
from foretell.services.scheduler.envoy.http2 import Http2Connection
from foretell.services.scheduler.turns import Turns

_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
_PROCESS = f"/{_SERVICE}/Process"
_CHECK = "/grpc.health.v1.Health/Check"
_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"  # HealthCheckResponse.status
MOST_CONNECTIONS = 256
"""Most connections of gateways, which have one per thread; further ones are closed at once."""
_CLOSE_S = 1.0
"""Time for a gateway to read what it was sent last, once the server shuts down."""


class Picker:
    """Serves all gateways that call this replica."""

    def __init__(self, app: App, authorization: Mapping[str, str]) -> None:
        self._app = app
        self._addresses = Addresses(app.shared.pool)
        self._authorization = authorization
        self._secret = b""
        self._connections: set[Http2Connection] = set()

    @asynccontextmanager
    async def serving(self, address: str, settings: SchedulerSettings) -> AsyncIterator[None]:
        """Serve at `unix:PATH` or `HOST:PORT` while the block runs. SystemExit if that is taken, or
        if other hosts could call it without authentication."""
        near = address.startswith("unix:") or is_loopback(address)
        trusts = near or settings.picker_proof == "network"
        self._secret = b"" if trusts else settings.secret.get_secret_value().encode()
        mutual = bool(settings.tls_certificate and settings.tls_authority)
        if not (trusts or self._secret or mutual):
            raise SystemExit(
                f"picker: other hosts can reach {address} and learn the engines' addresses and "
                "key: give a shared secret or mutual TLS, or listen on a unix socket or 127.0.0.1"
            )
        loop = asyncio.get_running_loop()
        self._turns = Turns()
        try:
            if address.startswith("unix:"):
                path = Path(address.removeprefix("unix:"))
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                server = await loop.create_unix_server(self._connection, str(path))
            else:
                host, _, port = address.rpartition(":")
                server = await loop.create_server(
                    self._connection, host.strip("[]"), int(port), ssl=_tls(settings)
                )
        except OSError as error:
            raise SystemExit(f"picker: cannot listen on {address}: {error.strerror}") from error
        try:
            yield
        finally:
            server.close()
            await self._end(Http2Connection.close)
            await self._end(Http2Connection.abort)

    async def _end(self, how: Callable[[Http2Connection], None]) -> None:
        """End all connections, and wait until they have ended, but not for long."""
        connections = list(self._connections)
        for connection in connections:
            how(connection)
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                for connection in connections:
                    await connection.ended.wait()

    def drain(self) -> None:
        """Take no new requests on the open connections."""
        for connection in self._connections:
            connection.drain()

    def _connection(self) -> Http2Connection:
        most = self._app.shared.in_progress.limit
        connection = Http2Connection(self._open, self._turns, self._connections, most)
        if len(self._connections) >= MOST_CONNECTIONS:
            asyncio.get_running_loop().call_soon(connection.abort)
        return connection

    def _open(self, stream: CallStream, headers: dict[str, str]) -> CallHandler | None:
        path = headers.get(":path", "")
        if path == _PROCESS:
            if self._secret:
                given = headers.get(METADATA_KEY, "").encode("latin-1")
                if not hmac.compare_digest(given, self._secret):
                    stream.end(UNAUTHENTICATED, "the shared secret is missing or wrong")
                    return None
            return PickerExchange(stream, self._app, self._addresses, self._authorization)
        if path == _CHECK:
            return _Check(stream, self._app)
        stream.end(UNIMPLEMENTED, f"no method {path}")
        return None


def _tls(traffic: SchedulerSettings) -> ssl.SSLContext | None:
    if not traffic.tls_certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(traffic.tls_certificate, traffic.tls_key)
    if traffic.tls_authority and traffic.picker_proof == "secret":
        context.load_verify_locations(traffic.tls_authority)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class _Check:
    """A call of gRPC's health service."""

    def __init__(self, stream: CallStream, app: App) -> None:
        self._stream = stream
        self._app = app

    def receive(self, message: bytes) -> None:
        service = message[2:].decode("latin-1")  # its only field is the first, a short string
        if service in ("", "liveness"):
            self._answer(True)
        elif service == "readiness":
            self._answer(self._app.shared.pool.ready and not self._app.draining)
        elif service == _SERVICE:  # it answers, if only that there is no engine
            self._answer(not self._app.draining)
        else:
            self._stream.end(NOT_FOUND, "no such service")

    def _answer(self, ready: bool) -> None:
        self._stream.send(_SERVING if ready else _NOT_SERVING)
        self._stream.end()

    def half_close(self) -> None:
        """Nothing to do: the caller waits for its answer."""

    def lose(self) -> None:
        """Nothing to do: the caller has left."""
