"""Sends requests to engines over kept-alive connections, which close when an engine is down."""

import asyncio
import ssl
from collections import deque
from collections.abc import Mapping
from math import inf
from weakref import WeakKeyDictionary

from yarl import URL

from foretell.openai.parsing import Spliced
from foretell.services.scheduler.placing.instance import PoolInstance
from foretell.services.scheduler.placing.pool import engine_authorization
from foretell.services.scheduler.relay.connection import (
    ENGINE_DOWN,
    AnswerListener,
    EngineConnection,
)
from foretell.services.scheduler.turns import Turns

# Shorter than uvicorn's 5 s: a connection that the engine is closing must not be used.
_KEEP_ALIVE_S = 2.0


class Unreachable(Exception):
    """The engine did not begin to answer. `reason` is a label for metrics."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class EngineClient:
    def __init__(self, api_key: str, connect_timeout_s: float, read_timeout_s: float) -> None:
        self.authorization = engine_authorization(api_key)
        self.connect_timeout_s = connect_timeout_s
        self.read_timeout_s = read_timeout_s
        self.turns = Turns()
        # Weak keys: the connections of a removed instance go with it.
        self._engines: WeakKeyDictionary[PoolInstance, _Engine] = WeakKeyDictionary()

    async def post(
        self,
        instance: PoolInstance,
        path: str,
        body: bytes | Spliced,
        headers: Mapping[str, str],
        listener: AnswerListener,
        content_type: str = "application/json",
    ) -> EngineConnection:
        """Send a request and return its connection; `listener` gets the answer. The caller must
        release the connection. It breaks when the engine does not answer health probes. Raises
        `Unreachable`."""
        engine = self._engines.get(instance)
        if engine is None:
            engine = self._engines[instance] = _Engine(instance, self)
            instance.heard_s = engine.heard_s
        head = engine.head(path, len(body), headers, content_type)
        connection = engine.idle() or await engine.connect()
        connection.send(head, body, listener)
        return connection

    def close(self) -> None:
        for engine in self._engines.values():
            engine.close()


class _Engine:
    """The connections to one engine."""

    def __init__(self, instance: PoolInstance, client: EngineClient) -> None:
        url = URL(instance.config.url)
        assert url.raw_host
        assert url.port
        self._host, self._port = url.raw_host, url.port
        self._ssl = ssl.create_default_context() if url.scheme == "https" else None
        self._prefix = url.raw_path.rstrip("/")
        # Answers are relayed as they come: they must not be compressed.
        self._fixed = (
            f" HTTP/1.1\r\nhost: {url.host_port_subcomponent}\r\naccept: */*\r\n"
            "accept-encoding: identity\r\n"
        ) + _lines(client.authorization)
        self._client = client
        self._idle: deque[EngineConnection] = deque()
        self._open: set[EngineConnection] = set()
        self._instance = instance
        self._loop = asyncio.get_running_loop()

    def head(
        self, path: str, body_bytes: int, headers: Mapping[str, str], content_type: str
    ) -> bytes:
        """The head of a request; headers must not contain line ends."""
        return (
            f"POST {self._prefix}{path}{self._fixed}content-type: {content_type}\r\n"
            f"content-length: {body_bytes}\r\n{_lines(headers)}\r\n"
        ).encode()

    def idle(self) -> EngineConnection | None:
        """A kept connection that can carry the next request; None if there is none."""
        oldest_s = self._loop.time() - _KEEP_ALIVE_S
        while self._idle and self._idle[0].idle_since_s < oldest_s:
            self._idle.popleft().lose("idle")
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and connection.is_silent:
                return connection
            connection.lose("connection_lost")
        return None

    def keep(self, connection: EngineConnection) -> None:
        """Keep a connection for the next request."""
        connection.idle_since_s = self._loop.time()
        self._idle.append(connection)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().lose("closing")

    async def connect(self) -> EngineConnection:
        """A new connection; raises `Unreachable`."""
        if self._instance.is_down:
            raise Unreachable(ENGINE_DOWN)
        when_down, loop = self._instance.when_down, self._loop
        try:
            async with asyncio.timeout(self._client.connect_timeout_s) as until:

                def give_up() -> None:
                    until.reschedule(loop.time())

                when_down.add(give_up)
                try:
                    _, connection = await loop.create_connection(
                        lambda: EngineConnection(
                            self._client.read_timeout_s, self.keep, self._forget, self._client.turns
                        ),
                        self._host,
                        self._port,
                        ssl=self._ssl,
                    )
                finally:
                    when_down.discard(give_up)
        except TimeoutError as error:
            raise Unreachable(ENGINE_DOWN if self._instance.is_down else "timeout") from error
        except OSError as error:
            raise Unreachable("connect") from error
        if not connection.reusable:
            raise Unreachable("connection_lost")
        when_down.add(connection.engine_down)
        self._open.add(connection)
        return connection

    def heard_s(self) -> float:
        """When the last byte came over a connection that is still open."""
        return max((connection.heard_s for connection in self._open), default=-inf)

    def _forget(self, connection: EngineConnection) -> None:
        self._open.discard(connection)
        self._instance.when_down.discard(connection.engine_down)


def _lines(headers: Mapping[str, str]) -> str:
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
