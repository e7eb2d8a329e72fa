"""Answers of other servers that pass through as they come, beside the path of generated tokens."""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress

import aiohttp

from foretell.services.scheduler.http.exchange import ClientLeft, Exchange

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
