"""Storage fails during a batch and comes back: the service continues and loses nothing."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from aiohttp import web
from postgres import Postgres, postgres
from workers import LINES, URL, request

from foretell.config import BatchSettings
from foretell.services.batch import __main__ as batch_main
from foretell.services.batch import executor

WAIT_S = 120.0
pytestmark = pytest.mark.timeout(500)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "_LOOK_S", 0.02)
    monkeypatch.setattr(executor, "_FIRST_PAUSE_S", 0.02)


@asynccontextmanager
async def scheduler() -> AsyncIterator[tuple[str, asyncio.Semaphore]]:
    """The URL of a fake scheduler, and the semaphore that limits how many requests it answers."""
    allowed = asyncio.Semaphore(0)

    async def answer(request: web.Request) -> web.Response:
        prompt = (await request.json())["prompt"]
        await allowed.acquire()
        return web.json_response({"said": prompt, "usage": {"completion_tokens": 2}})

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})

    async def status(_: web.Request) -> web.Response:
        return web.json_response({"instances": [{"instance_id": "e", "healthy": True}]})

    app = web.Application()
    app.add_routes([web.post(URL, answer), web.get("/v1/models", models)])
    app.router.add_get("/status", status)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}", allowed
    finally:
        await runner.cleanup()


@asynccontextmanager
async def serving(folder: Path, url: str, **changes: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a running batch service."""
    stop = asyncio.Event()
    ready = folder / "ready"
    settings = BatchSettings(
        folder=str(folder / "kept"), port=0, schedulers=url, ready_file=str(ready), **changes
    )
    task = asyncio.create_task(batch_main.serve(settings, stop))
    try:
        async with asyncio.timeout(WAIT_S):
            while not ready.exists() and not task.done():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        address = json.loads(ready.read_text())["address"]
        async with httpx.AsyncClient(base_url=f"http://{address}", trust_env=False) as client:
            client.timeout = WAIT_S
            yield client
    finally:
        stop.set()
        await task


async def created(client: httpx.AsyncClient) -> str:
    data = b"".join(map(request, range(LINES)))
    uploaded = await client.post("/v1/files", files={"file": data}, data={"purpose": "batch"})
    assert uploaded.status_code == 200, uploaded.text
    body = {"endpoint": URL, "completion_window": "24h", "input_file_id": uploaded.json()["id"]}
    batch = await client.post("/v1/batches", json=body)
    return str(batch.json()["id"])


async def reached(client: httpx.AsyncClient, batch_id: str, status: str, completed: int) -> dict:
    """The batch, once it has this status and at least `completed` completed requests."""
    async with asyncio.timeout(WAIT_S):
        while True:
            batch = (await client.get(f"/v1/batches/{batch_id}")).json()
            if batch["status"] == status and batch["request_counts"]["completed"] >= completed:
                return batch
            await asyncio.sleep(0.01)


async def check_output(client: httpx.AsyncClient, batch: dict) -> None:
    content = await client.get(f"/v1/files/{batch['output_file_id']}/content")
    found = [json.loads(line) for line in content.text.splitlines()]
    said = [(each["custom_id"], each["response"]["body"]["said"]) for each in found]
    assert said == [(f"c{number}", f"p{number}") for number in range(LINES)]


async def killed(server: Postgres) -> None:
    await asyncio.to_thread(server.kill)


async def test_a_database_that_goes_away_and_comes_back(tmp_path: Path) -> None:
    with postgres() as server:
        async with (
            scheduler() as (url, allowed),
            serving(tmp_path, url, database_url=server.url) as client,
        ):
            batch_id = await created(client)
            for _ in range(10):
                allowed.release()
            await reached(client, batch_id, "in_progress", 10)
            await killed(server)
            for _ in range(5):
                allowed.release()  # answered while the answers cannot be stored
            away = await client.get(f"/v1/batches/{batch_id}")
            assert (away.status_code, away.json()["error"]["code"]) == (503, "storage_failed")
            upload = await client.post("/v1/files", files={"file": b"x"}, data={"purpose": "batch"})
            assert upload.status_code == 503, upload.text
            await asyncio.to_thread(server.start)
            for _ in range(LINES):
                allowed.release()
            batch = await reached(client, batch_id, "completed", LINES)
            assert batch["request_counts"]["total"] == LINES
            assert batch["usage"]["output_tokens"] == 2 * LINES
            await check_output(client, batch)


async def test_files_in_object_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = pytest.importorskip("moto.server", reason="make test-storage")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")
    moto = server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    try:
        host, port = moto.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        await asyncio.to_thread(httpx.put, f"http://{host}:{port}/bucket")
        async with (
            scheduler() as (url, allowed),
            serving(tmp_path, url, files_url="s3://bucket/kept") as client,
        ):
            for _ in range(LINES):
                allowed.release()
            batch_id = await created(client)
            batch = await reached(client, batch_id, "completed", LINES)
            await check_output(client, batch)
    finally:
        moto.stop()
