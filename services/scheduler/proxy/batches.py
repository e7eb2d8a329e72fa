"""The way to the batch service: its requests and answers pass through as they come."""

from collections.abc import AsyncIterator
from urllib.parse import quote

import aiohttp
from yarl import URL

from foretell.services.process.peer import open_peer
from foretell.services.process.traffic import Traffic
from foretell.services.scheduler.api.errors import ApiError, unavailable
from foretell.services.scheduler.http.exchange import ClientLeft, Exchange
from foretell.services.scheduler.proxy.stored import answer_of, relay
from foretell.services.scheduler.tenants.quota import InProgress, Tenant

_PATHS = ("/v1/files", "/v1/batches")
_BELOW = tuple(f"{path}/" for path in _PATHS)
_FORWARDED = ("content-type", "idempotency-key", "accept")
_RETURNED = ("content-type", "content-length", "retry-after", "x-should-retry")
_MOST_BODY_BYTES = (200 << 20) + (1 << 20)
"""The largest file and what surrounds it in a form."""
METHODS = "GET, HEAD, POST, DELETE"
"""What there is at the paths of files and batches."""
_MOST_AT_ONCE = 64
_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=5.0, sock_read=120.0)


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
        query = f"?{exchange.query}" if exchange.query else ""
        failed: list[Exception] = []
        calling = session.request(
            exchange.method,
            # As it stands: dots in a path lead nowhere else.
            URL(f"{url}{quote(exchange.path)}{query}", encoded=True),
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
