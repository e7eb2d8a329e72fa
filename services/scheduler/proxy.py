"""What passes through as it comes: files and batches, and the responses that engines keep."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import suppress
from urllib.parse import quote

import aiohttp
from yarl import URL

from foretell.placement.needs import MOST_REFUSALS
from foretell.services.process.peer import open_peer
from foretell.services.process.traffic import Traffic
from foretell.services.scheduler.api.errors import ApiError, unavailable
from foretell.services.scheduler.api.headers import forwarded, returned
from foretell.services.scheduler.http.exchange import ClientLeft, Exchange
from foretell.services.scheduler.placing.kept import PATH, KeptResponses
from foretell.services.scheduler.placing.pool import Instance, Pool
from foretell.services.scheduler.tenants.quota import InProgress, Tenant

_PIECE_BYTES = 1 << 16


def _url(base: str, exchange: Exchange) -> URL:
    """What the client asked for, as it stands: dots in a path lead nowhere else."""
    query = f"?{exchange.query}" if exchange.query else ""
    return URL(f"{base}{quote(exchange.path)}{query}", encoded=True)


async def answer_of(
    exchange: Exchange, calling: Awaitable[aiohttp.ClientResponse]
) -> aiohttp.ClientResponse:
    """The head of the service's answer; raises `ClientLeft` if the client leaves before."""
    call = asyncio.ensure_future(calling)

    def give_up() -> None:
        call.cancel()

    exchange.on_left = give_up
    try:
        return await call
    except asyncio.CancelledError:
        if exchange.left:
            raise ClientLeft from None
        raise
    finally:
        exchange.on_left = None


async def relay(
    exchange: Exchange,
    answer: aiohttp.ClientResponse,
    headers: list[tuple[bytes, bytes]],
    *,
    has_length: bool,
) -> None:
    """Send the service's answer to the client, no faster than it reads."""
    room = asyncio.Event()
    room.set()
    exchange.on_left = room.set
    exchange.flow(room.clear, room.set)
    exchange.start(answer.status, headers, has_length=has_length)
    with suppress(ClientLeft):
        async for data in answer.content.iter_chunked(_PIECE_BYTES):
            await room.wait()
            if exchange.left:
                raise ClientLeft
            exchange.write(data)
        exchange.end()


METHODS = "GET, HEAD, POST, DELETE"
"""What there is at the paths of both."""
_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=5.0, sock_read=120.0)


def is_stored(path: str) -> bool:
    """Whether a path is that of one response."""
    return path.startswith(f"{PATH}/")


class StoredResponses:
    """The way to the responses that engines keep."""

    def __init__(
        self,
        pool: Pool,
        kept: KeptResponses,
        client: aiohttp.ClientSession,
        authorization: Mapping[str, str],
    ) -> None:
        self._pool = pool
        self._kept = kept
        self._client = client
        self._authorization = authorization

    def keepers(self, path: str, tenant: str) -> Sequence[Instance]:
        """The instance that keeps the response at a path; those that may, if nobody knows.

        Raises `ApiError` where it is another tenant's.
        """
        response_id = path.removeprefix(f"{PATH}/").partition("/")[0]
        known = self._pool.instances
        keeper = self._kept.keeper_of(response_id, tenant, known)
        if keeper in known:
            return [known[keeper]]
        return [each for each in known.values() if each.healthy][:MOST_REFUSALS]

    async def pass_on(self, exchange: Exchange, tenant: Tenant) -> None:
        """Have the engine answer that keeps the response; raises `ApiError`."""
        failed = unavailable("the engine that keeps this response is not up", "no_instance")
        keepers = self.keepers(exchange.path, tenant.name)
        for instance in keepers:
            try:
                if await self._pass_on(exchange, instance, is_last=instance is keepers[-1]):
                    return
            except ClientLeft:
                return
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                if exchange.begun:
                    exchange.abandon()
                    return
                failed.__cause__ = error
        raise failed

    async def _pass_on(self, exchange: Exchange, instance: Instance, *, is_last: bool) -> bool:
        """Whether the engine has answered: one that has no such response has not, if there are
        others to ask."""
        if exchange.method not in METHODS.split(", "):
            text = f"Method Not Allowed: {exchange.method} {exchange.path}"
            raise ApiError(405, text, headers={"allow": METHODS})
        calling = self._client.request(
            "GET" if exchange.method == "HEAD" else exchange.method,
            _url(instance.config.url, exchange),
            headers={
                **forwarded(exchange.headers),
                "accept-encoding": "identity",
                **self._authorization,
            },
            allow_redirects=False,
            timeout=_TIMEOUT,
        )
        async with await answer_of(exchange, calling) as answer:
            if answer.status == 404 and not is_last:
                return False
            headers = {
                name.lower().encode(): value.encode("latin-1")
                for name, value in answer.headers.items()
            }
            coded = headers.pop(b"content-encoding", None)  # it was decoded
            given = returned(headers)
            has_length = coded is None and b"content-length" in headers
            if has_length:
                given.append((b"content-length", headers[b"content-length"]))
            await relay(exchange, answer, given, has_length=has_length)
        return True


_PATHS = ("/v1/files", "/v1/batches")
_BELOW = tuple(f"{path}/" for path in _PATHS)
_FORWARDED = ("content-type", "idempotency-key", "accept")
_RETURNED = ("content-type", "content-length", "retry-after", "x-should-retry")
_MOST_BODY_BYTES = (200 << 20) + (1 << 20)
"""The largest file and what surrounds it in a form."""
_MOST_AT_ONCE = 64


def is_for_batches(path: str) -> bool:
    """Whether a path is the batch service's."""
    return path in _PATHS or path.startswith(_BELOW)


class Batches:
    def __init__(self, address: str, traffic: Traffic) -> None:
        """`address` is `unix:PATH` or `HOST:PORT`; empty: there is no such service."""
        self._address = address
        self._traffic = traffic
        self._opened: tuple[str, aiohttp.ClientSession] | None = None
        # A tenant that holds its places for long leaves half of all to others.
        self._places = InProgress(_MOST_AT_ONCE, what="requests about files and batches", share=1)

    async def pass_on(self, exchange: Exchange, tenant: Tenant) -> None:
        """Have the batch service answer; raises `ApiError`."""
        if not self._address:
            text = "this cluster has no batch service; its cluster file would have a section"
            raise ApiError(404, f"{text} 'batches'", code="no_batch_service")
        try:
            with self._places.place(tenant.name):
                await self._pass_on(exchange, tenant)
        except ClientLeft:
            return
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if exchange.begun:
                exchange.abandon()
                return
            raise unavailable("the batch service does not answer", "no_batch_service") from error

    async def _pass_on(self, exchange: Exchange, tenant: Tenant) -> None:
        headers = {
            name: exchange.headers[name] for name in _FORWARDED if name in exchange.headers
        } | self._traffic.headers(tenant.name)
        if self._opened is None:
            self._opened = open_peer(
                self._address, self._traffic, timeout=_TIMEOUT, auto_decompress=False
            )
        url, session = self._opened
        failed: list[Exception] = []
        calling = session.request(
            exchange.method,
            _url(url, exchange),
            headers=headers,
            data=_body_of(exchange, failed) if exchange.method == "POST" else None,
            allow_redirects=False,
        )
        try:
            answering = await answer_of(exchange, calling)
        except aiohttp.ClientError:
            if failed:  # the reason is the client's, not the service's
                raise failed[0] from None
            raise
        async with answering as answer:
            if failed:
                raise failed[0]
            given = [
                (name.encode(), answer.headers[name].encode("latin-1"))
                for name in _RETURNED
                if name in answer.headers
            ]
            await relay(exchange, answer, given, has_length="content-length" in answer.headers)

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened[1].close()


async def _body_of(exchange: Exchange, failed: list[Exception]) -> AsyncIterator[bytes]:
    """The client's body; `failed` gets what was wrong with it."""
    try:
        async for part in exchange.parts(_MOST_BODY_BYTES):
            yield part
    except (ApiError, ClientLeft) as error:
        failed.append(error)
        raise
