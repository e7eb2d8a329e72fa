"""How many bytes of lines may be held at a time."""

import asyncio
from contextlib import AsyncExitStack

from foretell.services.batch.room import Room


async def test_a_tenant_leaves_as_much_as_it_takes_and_waits_for_its_own() -> None:
    room = Room(100)
    async with AsyncExitStack() as held:
        await held.enter_async_context(room.of("a", 30))
        await held.enter_async_context(room.of("a", 20))

        async def more(tenant: str, number: int) -> None:
            async with room.of(tenant, number):
                pass

        waiting = asyncio.create_task(more("a", 1))
        await more("b", 25)
        assert not waiting.done()
        cancelled = asyncio.create_task(more("a", 1))
        await asyncio.sleep(0)
        cancelled.cancel()
        await held.aclose()
        await waiting
    await more("a", 50)
