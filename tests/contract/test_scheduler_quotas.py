"""Callers' limits that two replicas enforce together, through a real predictor's stream."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
from engines import Engine, answer, engines, gated
from schedulers import WAIT_S, Scheduler, running, until
from sidecars import sidecar


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    found = [tmp_path / "one", tmp_path / "other"]
    for each in found:
        each.mkdir()
    return found


@asynccontextmanager
async def replica(folder: Path, engine: Engine, predictor: str) -> AsyncIterator[Scheduler]:
    limits = {
        "team": {"requests_per_min": 60},
        "one": {"concurrency": 1},
    }
    for name, fields in limits.items():
        fields["sha256"] = hashlib.sha256(name.encode()).hexdigest()  # type: ignore[assignment]
    file = folder / "keys.yaml"
    file.write_text(json.dumps(limits))  # which is YAML, too
    async with running(
        folder,
        [engine],
        [predictor],
        policy="predicted_latency",
        api_keys_file=str(file),
        headers={"x-api-key": "one"},
        drain_timeout_s=0.1,
        all_up=False,
    ) as found:
        async with asyncio.timeout(WAIT_S):
            while (await found.client.get("/ready")).status_code != 200:  # noqa: ASYNC110 - HTTP
                await asyncio.sleep(0.01)
        yield found


async def status(scheduler: Scheduler) -> int:
    """The status of a new request; 0 if it is still in progress after a second."""
    with suppress(TimeoutError):
        async with asyncio.timeout(1.0):
            return (await scheduler.complete()).status_code
    return 0


async def until_status(scheduler: Scheduler, wanted: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while await status(scheduler) != wanted:  # noqa: ASYNC110 - asked over HTTP
            await asyncio.sleep(0.02)


async def test_what_one_replica_serves_another_counts(tmp_path: Path, folders: list[Path]) -> None:
    async def left(scheduler: Scheduler) -> int:
        response = await scheduler.complete(headers={"x-api-key": "team"})
        return int(response.headers["x-ratelimit-remaining-requests"])

    async with (
        sidecar(tmp_path) as here,
        engines(answer) as (engine,),
        replica(folders[0], engine, here.address) as one,
        replica(folders[1], engine, here.address) as other,
    ):
        for _ in range(30):
            await left(one)
        asked = 1
        async with asyncio.timeout(WAIT_S):
            while await left(other) >= 60 - asked:  # it counts only its own requests yet
                asked += 1
                await asyncio.sleep(0.02)


async def test_a_replica_that_dies_takes_its_requests_in_progress_along(
    tmp_path: Path, folders: list[Path]
) -> None:
    async with (
        sidecar(tmp_path) as here,
        engines(answer) as (engine,),
        replica(folders[1], engine, here.address) as other,
        AsyncExitStack() as alive,
    ):
        one = await alive.enter_async_context(replica(folders[0], engine, here.address))
        assert await status(one) == 200
        engine.behaviour = gated(asyncio.Event())
        count = len(engine.received)
        held = asyncio.create_task(one.complete())
        await until(lambda: len(engine.received) > count)
        await until_status(other, 429)
        engine.behaviour = answer
        held.cancel()
        await alive.aclose()
        await until_status(other, 200)
