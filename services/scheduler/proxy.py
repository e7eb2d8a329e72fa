"""Passes requests through unchanged: for files and batches, and for responses engines keep."""

import asyncio
from collections.abc import Mapping, Sequence
from urllib.parse import quote

import aiohttp
from yarl import URL

from foretell.openai.errors import ApiError, unavailable
from foretell.openai.headers import forwarded, returned
from foretell.openai.kept import PATH, KeptResponses
from foretell.placement.needs import MOST_REFUSALS
from foretell.services.http.exchange import Exchange
from foretell.services.process.peer import open_peer
from foretell.services.process.traffic import Traffic
from foretell.services.scheduler.placing.instance import PoolInstance
from foretell.services.scheduler.placing.pool import Pool
from foretell.tenants.in_progress import InProgress
from foretell.tenants.quota import Tenant

METHODS = ("GET", "HEAD", "POST", "DELETE")
"""The methods that the paths of both services take."""
_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=5.0, sock_read=120.0)
_LOST = (aiohttp.ClientError, TimeoutError, OSError)
_PIECE_BYTES = 1 << 16


def _url(base: str, exchange: Exchange) -> URL:
    """The client's URL at `base`. It is not normalized, so dots in a path cannot lead elsewhere."""
    query = f"?{exchange.query}" if exchange.query else ""
    return URL(f"{base}{quote(exchange.path)}{query}", encoded=True)


async def _relay(
    exchange: Exchange, answer: aiohttp.ClientResponse, headers: list[tuple[bytes, bytes]]
) -> None:
    """Send the service's answer to the client, no faster than it reads."""
    room = asyncio.Event()
    room.set()
    exchange.flow(room.clear, room.set)
    has_length = any(name == b"content-length" for name, _ in headers)
    exchange.start(answer.status, headers, has_length=has_length)
    async for data in answer.content.iter_chunked(_PIECE_BYTES):
        await room.wait()
        exchange.write(data)
    exchange.end()


def is_stored(path: str) -> bool:
    """Whether a path is that of a stored response."""
    return path.startswith(f"{PATH}/")


class StoredResponses:
    """Passes requests to the engines that keep responses."""

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

    def keepers(self, path: str, tenant: str) -> Sequence[PoolInstance]:
        """The instance that keeps the response at a path; if unknown, healthy ones that may.

        Raises `ApiError` if the response is another tenant's.
        """
        response_id = path.removeprefix(f"{PATH}/").partition("/")[0]
        known = self._pool.instances
        keeper = self._kept.keeper_of(response_id, tenant, known)
        if keeper in known:
            return [known[keeper]]
        return [each for each in known.values() if each.healthy][:MOST_REFUSALS]

    async def pass_on(self, exchange: Exchange, tenant: Tenant) -> None:
        """Have the engine that keeps the response answer; raises `ApiError`."""
        failed = unavailable("the engine that keeps this response is not up", "no_instance")
        keepers = self.keepers(exchange.path, tenant.name)
        own = {"accept-encoding": "identity", **self._authorization}
        for instance in keepers:
            calling = self._client.request(
                "GET" if exchange.method == "HEAD" else exchange.method,
                _url(instance.config.url, exchange),
                headers={**forwarded(exchange.headers), **own},
                allow_redirects=False,
                timeout=_TIMEOUT,
            )
            try:
                async with calling as answer:
                    if answer.status == 404 and instance is not keepers[-1]:
                        continue
                    await _relay(exchange, answer, _returned(answer))
                    return
            except _LOST as error:
                if exchange.begun:
                    return
                failed.__cause__ = error
        raise failed


def _returned(answer: aiohttp.ClientResponse) -> list[tuple[bytes, bytes]]:
    headers = {name.lower().encode(): v.encode("latin-1") for name, v in answer.headers.items()}
    length = headers.get(b"content-length")
    if headers.pop(b"content-encoding", None) is not None or length is None:  # it was decoded
        return returned(headers)
    return [*returned(headers), (b"content-length", length)]


_PATHS = ("/v1/files", "/v1/batches")
_BELOW = tuple(f"{path}/" for path in _PATHS)
_FORWARDED = ("content-type", "idempotency-key", "accept")
_RETURNED = ("content-type", "content-length", "retry-after", "x-should-retry", "allow")
_MOST_BODY_BYTES = (200 << 20) + (1 << 20)
"""The largest file, and the rest of the form that has it."""
_MOST_AT_ONCE = 64


def is_for_batches(path: str) -> bool:
    """Whether a path is the batch service's."""
    return path in _PATHS or path.startswith(_BELOW)


class Batches:
    def __init__(self, address: str, traffic: Traffic) -> None:
        """`address` is `unix:PATH` or `HOST:PORT`; empty: there is no such service."""
        self._traffic = traffic
        self._service: tuple[str, aiohttp.ClientSession] | None = None
        if address:
            self._service = open_peer(address, traffic, timeout=_TIMEOUT, auto_decompress=False)
        # A tenant that holds its places for long leaves half of all to others.
        self._places = InProgress(_MOST_AT_ONCE, what="requests about files and batches", share=1)

    async def pass_on(self, exchange: Exchange, tenant: Tenant) -> None:
        """Have the batch service answer; raises `ApiError`."""
        if self._service is None:
            text = "this cluster has no batch service; its cluster file would have a section"
            raise ApiError(404, f"{text} 'batches'", code="no_batch_service")
        with self._places.place(tenant.name):
            try:
                await self._pass_on(*self._service, exchange, tenant)
            except _LOST as error:
                if isinstance(error.__cause__, ApiError):  # an error of the client's body
                    raise error.__cause__ from None
                if not exchange.begun:
                    text = "the batch service does not answer"
                    raise unavailable(text, "no_batch_service") from error

    async def _pass_on(
        self, url: str, session: aiohttp.ClientSession, exchange: Exchange, tenant: Tenant
    ) -> None:
        given = {name: exchange.headers[name] for name in _FORWARDED if name in exchange.headers}
        calling = session.request(
            exchange.method,
            _url(url, exchange),
            headers=given | self._traffic.headers(tenant.name),
            data=exchange.parts(_MOST_BODY_BYTES) if exchange.method == "POST" else None,
            allow_redirects=False,
        )
        async with calling as answer:
            found = ((name, answer.headers.get(name)) for name in _RETURNED)
            headers = [(name.encode(), v.encode("latin-1")) for name, v in found if v is not None]
            await _relay(exchange, answer, headers)

    async def close(self) -> None:
        if self._service is not None:
            await self._service[1].close()
