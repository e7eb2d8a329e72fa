"""The way to an engine over HTTP: open, read, notice that the engine is down, close."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp

from services.scheduler.placing.pool import engine_authorization
from services.scheduler.relay.framing import Event, Framing

ENGINE_DOWN = "engine_down"


def engine_session(connect_timeout_s: float, read_timeout_s: float) -> aiohttp.ClientSession:
    """A pool of connections to engines; `read_timeout_s` bounds the silence between two bytes."""
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(
            total=None, sock_connect=connect_timeout_s, sock_read=read_timeout_s
        ),
        # Shorter than uvicorn's 5 s: a connection that the engine is closing must not be used.
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        headers={"accept-encoding": "identity"},  # answers are relayed as they come
    )


class Unreachable(Exception):
    """The engine did not begin to answer. `reason` is a label for metrics."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Upstream:
    """An engine's answer, from its headers on."""

    def __init__(self, response: aiohttp.ClientResponse, down: asyncio.Event) -> None:
        self._response = response
        self._down = down

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    async def receive(self, framing: Framing) -> list[Event]:
        """Wait for what comes next and feed it to `framing`; returns the events of `framing`."""
        try:
            data = await self._response.content.readany()
        except (aiohttp.ClientError, TimeoutError) as error:
            return framing.feed_break(ENGINE_DOWN if self._down.is_set() else _reason(error))
        return framing.feed(data) if data else framing.feed_end()

    async def close_when_down(self) -> None:
        """Close the connection once the engine is down: `receive` must not wait any longer."""
        await self._down.wait()
        self._response.close()


class EngineClient:
    """Sends requests to engines."""

    def __init__(self, session: aiohttp.ClientSession, api_key: str) -> None:
        self._session = session
        self._authorization = engine_authorization(api_key)

    @asynccontextmanager
    async def post(
        self, url: str, body: bytes, headers: dict[str, str], down: asyncio.Event
    ) -> AsyncIterator[Upstream]:
        """Send a request; the block begins when the engine's headers are here.

        `down` is set while the engine does not answer health probes. Raises `Unreachable`. After
        the block a connection whose answer was read to its end can be used again; any other is
        closed, which tells the engine to stop generating.
        """
        response = await self._open(url, body, {**headers, **self._authorization}, down)
        upstream = Upstream(response, down)
        watch = asyncio.create_task(upstream.close_when_down())
        try:
            yield upstream
        finally:
            watch.cancel()
            response.close()

    async def _open(
        self, url: str, body: bytes, headers: dict[str, str], down: asyncio.Event
    ) -> aiohttp.ClientResponse:
        try:
            async with asyncio.timeout(None) as until_down:
                watch = asyncio.create_task(_expire_when_set(down, until_down))
                try:
                    return await self._session.post(
                        url, data=body, headers=headers, allow_redirects=False
                    )
                finally:
                    watch.cancel()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unreachable(ENGINE_DOWN if until_down.expired() else _reason(error)) from error


async def _expire_when_set(event: asyncio.Event, timeout: asyncio.Timeout) -> None:
    await event.wait()
    timeout.reschedule(asyncio.get_running_loop().time())


def _reason(error: Exception) -> str:
    """What went wrong, as a label for metrics."""
    if isinstance(error, TimeoutError):
        return "timeout"
    return "connect" if isinstance(error, aiohttp.ClientConnectorError) else "connection_lost"
