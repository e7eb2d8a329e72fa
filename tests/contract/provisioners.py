"""The provisioner on a real socket in this process, and a client for it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from schedulers import WAIT_S, until

from foretell.config import ProvisionerSettings
from foretell.services.provisioner.__main__ import serve


class Provisioner:
    """A client of one running provisioner."""

    def __init__(self, ready: dict[str, Any], client: httpx.AsyncClient) -> None:
        self.ready = ready
        self.url: str = ready["url"]
        self.client = client

    async def status(self) -> dict[str, Any]:
        return (await self.client.get("/status")).json()

    async def until(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until `condition` holds for /status; return that status."""
        async with asyncio.timeout(WAIT_S):
            while not condition(found := await self.status()):  # noqa: ASYNC110 - asked over HTTP
                await asyncio.sleep(0.01)
        return found

    async def until_desired(self, desired: int, because: str = "strategy") -> dict[str, Any]:
        found = await self.until(
            lambda s: (
                s["active"]
                and bool(s["decision"])
                and (s["decision"]["desired"], s["decision"]["because"]) == (desired, because)
            )
        )
        decision: dict[str, Any] = found["decision"]
        return decision

    async def metrics(self) -> dict[tuple[str, ...], float]:
        """All samples, by name and label values."""
        text = (await self.client.get("/metrics")).text
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


@asynccontextmanager
async def provisioning(folder: Path, name: str = "p", **changes: Any) -> AsyncIterator[Provisioner]:
    """A running provisioner with its lease and state in `folder`."""
    ready_file = folder / f"{name}.ready"
    values = {"folder": str(folder / "state"), "every_s": 0.02, "cool_down_s": 0.0, **changes}
    settings = ProvisionerSettings(ready_file=str(ready_file), **values)
    stop = asyncio.Event()
    task = asyncio.create_task(serve(settings, stop))
    try:
        await until(lambda: ready_file.exists() or task.done())
        if task.done():
            task.result()
        ready = json.loads(ready_file.read_text())
        async with httpx.AsyncClient(
            base_url=ready["url"], timeout=WAIT_S, trust_env=False
        ) as client:
            yield Provisioner(ready, client)
    finally:
        stop.set()
        await task
