"""The way to engines: requests over kept-alive connections, until an engine is down."""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from weakref import WeakKeyDictionary

from yarl import URL

from services.scheduler.placing.pool import Instance, engine_authorization
from services.scheduler.relay.connection import Connection, ConnectionBroken
from services.scheduler.relay.framing import Event, Framing

ENGINE_DOWN = "engine_down"
# Shorter than uvicorn's 5 s: a connection that the engine is closing must not be used.
_KEEP_ALIVE_S = 2.0


class Unreachable(Exception):
    """The engine did not begin to answer. `reason` is a label for metrics."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Upstream:
    """An engine's answer, from its headers on. It must be closed."""

    def __init__(self, engine: "_Engine", connection: Connection, lose: Callable[[], None]) -> None:
        self._engine = engine
        self._connection = connection
        self._lose = lose
        self.status = connection.status
        self.headers: Mapping[bytes, bytes] = connection.headers

    async def receive(self, framing: Framing) -> list[Event]:
        """Wait for what comes next and feed it to `framing`; returns the events of `framing`."""
        try:
            data = await self._connection.read()
        except ConnectionBroken as error:
            return framing.feed_break(error.reason)
        return framing.feed(data) if data else framing.feed_end()

    def close(self) -> None:
        """Keep the connection if the answer was read to its end.

        Otherwise it is closed, which tells the engine to stop generating.
        """
        self._engine.when_down.discard(self._lose)
        self._engine.give_back(self._connection)


class EngineClient:
    """Sends requests to engines."""

    def __init__(self, api_key: str, connect_timeout_s: float, read_timeout_s: float) -> None:
        """`read_timeout_s` bounds the silence between two bytes of an answer."""
        self._authorization = engine_authorization(api_key)
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
        # An instance that is taken off the list takes its connections with it.
        self._engines: WeakKeyDictionary[Instance, _Engine] = WeakKeyDictionary()

    async def post(
        self, instance: Instance, path: str, body: bytes, headers: Mapping[str, str]
    ) -> Upstream:
        """Send a request; returns when the engine's headers are here.

        It is given up when the engine does not answer health probes. Raises `Unreachable`.
        """
        engine = self._engines.get(instance)
        if engine is None:
            url = URL(instance.config.url)
            engine = _Engine(url, instance.down, self._connect_timeout_s, self._read_timeout_s)
            self._engines[instance] = engine
        head = engine.head(path, len(body), {**headers, **self._authorization})
        connection = await engine.connection()

        def lose() -> None:
            connection.lose(ENGINE_DOWN)

        engine.when_down.add(lose)
        upstream = None
        try:
            connection.send(head, body)
            await connection.head()
            upstream = Upstream(engine, connection, lose)
            return upstream
        except ConnectionBroken as error:
            raise Unreachable(error.reason) from error
        finally:
            if upstream is None:
                engine.when_down.discard(lose)
                connection.lose("connection_lost")

    def close(self) -> None:
        """Close the connections that wait for a request."""
        for engine in self._engines.values():
            engine.close()


class _Engine:
    """The connections to one engine."""

    def __init__(
        self, url: URL, down: asyncio.Event, connect_timeout_s: float, read_timeout_s: float
    ) -> None:
        assert url.raw_host
        assert url.port
        self._host, self._port = url.raw_host, url.port
        self._ssl = ssl.create_default_context() if url.scheme == "https" else None
        self._prefix = url.raw_path.rstrip("/")
        self._host_header = url.host_port_subcomponent
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
        self._idle: deque[Connection] = deque()
        self.when_down = _WhenSet(down)

    def head(self, path: str, body_bytes: int, headers: Mapping[str, str]) -> bytes:
        """The head of a request; no header holds a line end."""
        lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
        # Answers are relayed as they come: they must not be compressed.
        return (
            f"POST {self._prefix}{path} HTTP/1.1\r\nhost: {self._host_header}\r\n"
            f"accept: */*\r\naccept-encoding: identity\r\ncontent-length: {body_bytes}\r\n"
            f"{''.join(lines)}\r\n"
        ).encode()

    async def connection(self) -> Connection:
        """A connection that carries no request; raises `Unreachable`."""
        oldest_s = asyncio.get_running_loop().time() - _KEEP_ALIVE_S
        while self._idle and self._idle[0].idle_since_s < oldest_s:
            self._idle.popleft().lose("idle")
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                return connection
        return await self._connect()

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for the next request, or close it."""
        if connection.reusable:
            connection.idle_since_s = asyncio.get_running_loop().time()
            self._idle.append(connection)
        else:
            connection.lose("given_up")

    def close(self) -> None:
        """Close the connections that wait for a request."""
        while self._idle:
            self._idle.pop().lose("closing")

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        is_down = False
        try:
            async with asyncio.timeout(self._connect_timeout_s) as until:

                def give_up() -> None:
                    nonlocal is_down
                    is_down = True
                    until.reschedule(loop.time())

                self.when_down.add(give_up)
                try:
                    _, connection = await loop.create_connection(
                        lambda: Connection(self._read_timeout_s),
                        self._host,
                        self._port,
                        ssl=self._ssl,
                    )
                finally:
                    self.when_down.discard(give_up)
        except TimeoutError as error:
            raise Unreachable(ENGINE_DOWN if is_down else "timeout") from error
        except OSError as error:
            raise Unreachable("connect") from error
        return connection


class _WhenSet:
    """Calls what was added once an event is set; at once if it is set already."""

    def __init__(self, event: asyncio.Event) -> None:
        self._event = event
        self._calls: set[Callable[[], None]] = set()
        self._task: asyncio.Task[None] | None = None

    def add(self, call: Callable[[], None]) -> None:
        """Call `call` when the event is set, unless it is discarded first."""
        self._calls.add(call)
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def discard(self, call: Callable[[], None]) -> None:
        """Take back what was added."""
        self._calls.discard(call)
        if not self._calls and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        with suppress(asyncio.CancelledError):
            await self._event.wait()
            self._task = None
            for call in list(self._calls):
                call()
