"""Engines and predictors are found again when their names get new addresses, as containers' do.

The tests resolve the names. The servers are real; both have the same port on different addresses.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from engines import WHOLE, Engine, hang
from schedulers import WAIT_S, running
from sidecars import Replica, Sidecar, replica, snapshot

from foretell.services.process import snapshot_stream
from foretell.services.process.frames import with_free_port
from foretell.services.process.traffic import OPEN
from tests.processes import wait_until

NAME, BEFORE, AFTER = "engine.test", "127.0.0.2", "127.0.0.3"


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The addresses that names resolve to in Python's event loops; tests change them."""
    known = {NAME: BEFORE}
    resolve = socket.getaddrinfo

    def resolved(host: Any, *arguments: Any, **options: Any) -> Any:
        return resolve(known.get(host, host), *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    return known


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(asyncio.wait_for(scenario(), 4 * WAIT_S))


@asynccontextmanager
async def engines() -> AsyncIterator[tuple[Engine, Engine]]:
    """The engines at the old and at the new address."""
    first, second = Engine("e"), Engine("e")
    first.host, second.host = BEFORE, AFTER
    await first.start()
    second.port = first.port
    await second.start()
    try:
        yield first, second
    finally:
        await first.stop()
        await second.stop()


async def refuse(engine: Engine) -> None:
    await engine.stop()


async def fall_silent(engine: Engine) -> None:
    """Behave like a host without network: no connection is closed, and nothing is answered."""
    engine.health_status, engine.behaviour = None, hang


@pytest.mark.parametrize("vanish", [refuse, fall_silent])
def test_an_engine_that_has_another_address_is_asked_there(
    names: dict[str, str], tmp_path: Path, vanish: Callable[[Engine], Awaitable[None]]
) -> None:
    async def scenario() -> None:
        async with engines() as (first, second):
            url = f"http://{NAME}:{first.port}"
            settings = {"engine_wait_s": WAIT_S, "health_timeout_s": 0.3}
            listed = json.dumps([{"instance_id": "e", "url": url}])
            async with running(tmp_path, instances=listed, **settings) as scheduler:
                assert (await scheduler.complete()).content == WHOLE
                assert (len(first.received), len(second.received)) == (1, 0)
                await vanish(first)
                asked = asyncio.create_task(scheduler.complete())
                await scheduler.until(lambda s: not s["instances"][0]["healthy"])
                names[NAME] = AFTER
                assert (await asked).content == WHOLE
                assert len(second.received) == 1

    run(scenario)


async def stop(sidecar: Sidecar) -> None:
    await sidecar.stop()


async def say_nothing(sidecar: Sidecar) -> None:
    sidecar.streams.publisher.close()


@pytest.mark.parametrize("vanish", [stop, say_nothing])
def test_a_predictor_that_has_another_address_is_followed_there(
    names: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    vanish: Callable[[Sidecar], Awaitable[None]],
) -> None:
    monkeypatch.setattr(
        snapshot_stream, "_LOST_S", 2.0
    )  # twice as long as the pause between messages

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            port = with_free_port(f"{BEFORE}:0").rpartition(":")[2]
            sidecars = [Sidecar(f"{host}:{port}", OPEN) for host in (BEFORE, AFTER)]
            for each in sidecars:
                await each.start()
                each.service.hear(snapshot(sequence=1))
            first, second = sidecars
            found: Replica = await stack.enter_async_context(replica(f"{NAME}:{port}"))
            await wait_until(found.is_fresh)
            assert not second.streams.publisher.followers
            names[NAME] = AFTER
            await vanish(first)
            await wait_until(lambda: second.streams.publisher.followers and found.is_fresh())
            await second.stop()
            if vanish is not stop:
                await first.stop()

    run(scenario)
