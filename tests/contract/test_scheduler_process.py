"""The scheduler as a process: it starts, writes its address, and ends without losing anything."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from engines import EVENTS, MODEL, STREAM, WHOLE, Engine, answer, engines, gated
from schedulers import WAIT_S, Scheduler, instances_json, until


@asynccontextmanager
async def process(
    folder: Path, made: Sequence[Engine], *flags: str
) -> AsyncIterator[tuple["subprocess.Popen[bytes]", Scheduler]]:
    """Run `python -m foretell.services.scheduler` until it is ready; it is killed at the end."""
    ready_file = folder / "ready"
    command = [sys.executable, "-m", "foretell.services.scheduler", "--ready-file", str(ready_file)]
    command += ["--instances", instances_json(made), *flags]
    with (
        open(folder / "stderr", "wb") as log,  # noqa: ASYNC230 - a new, empty file
        subprocess.Popen(command, stderr=log) as child,  # noqa: ASYNC220 - it forks, and returns
    ):
        try:
            await until(lambda: ready_file.exists() or child.poll() is not None)
            assert child.poll() is None, (folder / "stderr").read_text()
            ready = json.loads(ready_file.read_text())
            assert ready["pid"] == child.pid
            async with httpx.AsyncClient(
                base_url=ready["url"], timeout=WAIT_S, trust_env=False
            ) as client:
                scheduler = Scheduler(ready, client)
                await scheduler.until(lambda s: all(i["healthy"] for i in s["instances"]))
                yield child, scheduler
        finally:
            child.kill()


async def test_a_running_stream_ends_well_after_sigterm(tmp_path: Path) -> None:
    gate = asyncio.Event()
    body = {"model": MODEL, "prompt": "x", "stream": True}
    log = tmp_path / "log"
    async with (
        engines(gated(gate)) as (engine,),
        process(tmp_path, [engine], "--request-log", str(log)) as (child, scheduler),
    ):
        whole = asyncio.create_task(scheduler.complete())
        await until(lambda: len(engine.received) == 1)
        async with scheduler.client.stream("POST", "/v1/completions", json=body) as response:
            chunks = response.aiter_raw()
            text = b""
            while len(text) < len(EVENTS[0]):
                text += await anext(chunks)
            child.send_signal(signal.SIGTERM)
            await until_not_ready(scheduler)
            assert child.poll() is None
            gate.set()
            text += b"".join([chunk async for chunk in chunks])
        assert text == STREAM
        assert (await whole).content == WHOLE
        await until(lambda: child.poll() is not None)
        assert child.returncode == 0
    assert len(log.read_text().splitlines()) == 2  # recorded although the server was shutting down
    assert "Traceback" not in (tmp_path / "stderr").read_text()


async def until_not_ready(scheduler: Scheduler) -> None:
    """Wait for status 503 or a refused connection, which mean the same to a load balancer."""
    async with asyncio.timeout(WAIT_S), httpx.AsyncClient(trust_env=False) as fresh:
        while True:
            try:
                response = await fresh.get(f"{scheduler.url}/ready")
            except httpx.TransportError:
                return
            if response.status_code == 503:
                assert response.json()["error"]["code"] in ("draining", "no_instance")
                return
            assert response.status_code == 200


async def test_replicas_share_a_port(tmp_path: Path) -> None:
    async with engines(answer) as (engine,):
        first, second = tmp_path / "a", tmp_path / "b"
        first.mkdir()
        second.mkdir()
        async with process(first, [engine], "--name", "one") as (_, one):
            # Any free port will do.
            probe = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
            port = probe.sockets[0].getsockname()[1]
            probe.close()
            await probe.wait_closed()
            assert (await one.status())["replica_id"] == "one"
            flags = ("--shared-port", str(port))
            (second / "x").mkdir()
            async with (
                process(second, [engine], *flags, "--name", "two") as (_, two),
                process(second / "x", [engine], *flags, "--name", "three") as (_, three),
                httpx.AsyncClient(trust_env=False) as client,
            ):
                names = set()
                async with asyncio.timeout(WAIT_S):
                    while names != {"two", "three"}:
                        headers = {"connection": "close"}  # may reach either replica
                        url = f"http://127.0.0.1:{port}/status"
                        names.add((await client.get(url, headers=headers)).json()["replica_id"])
                assert (await two.complete()).content == WHOLE
                assert (await three.complete()).content == WHOLE
