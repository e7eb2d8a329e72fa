"""Responses of the Responses API are read, cancelled and deleted at the engine that keeps them."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from urllib.parse import quote

import aiohttp
from yarl import URL

from foretell.placement.needs import MOST_REFUSALS
from foretell.services.scheduler.api.errors import ApiError, unavailable
from foretell.services.scheduler.api.headers import forwarded, returned
from foretell.services.scheduler.http.exchange import ClientLeft, Exchange
from foretell.services.scheduler.placing.kept import PATH, KeptResponses
from foretell.services.scheduler.placing.pool import Instance, Pool

_PIECE_BYTES = 1 << 16


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

    def keepers(self, path: str) -> Sequence[Instance]:
        """The instance that keeps the response at a path; those that may, if nobody knows."""
        response_id = path.removeprefix(f"{PATH}/").partition("/")[0]
        known = self._pool.instances
        keeper = self._kept.keeper_of(response_id, known)
        if keeper in known:
            return [known[keeper]]
        return [each for each in known.values() if each.healthy][:MOST_REFUSALS]

    async def pass_on(self, exchange: Exchange) -> None:
        """Have the engine answer that keeps the response; raises `ApiError`."""
        failed = unavailable("the engine that keeps this response is not up", "no_instance")
        keepers = self.keepers(exchange.path)
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
        query = f"?{exchange.query}" if exchange.query else ""
        calling = self._client.request(
            "GET" if exchange.method == "HEAD" else exchange.method,
            # As it stands: dots in a path lead nowhere else.
            URL(f"{instance.config.url}{quote(exchange.path)}{query}", encoded=True),
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
