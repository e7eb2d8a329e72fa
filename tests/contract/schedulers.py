"""The scheduler on a real socket in this process, and a client for it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from engines import MODEL, Engine
from openai import AsyncOpenAI
from prometheus_client.parser import text_string_to_metric_families

from foretell.config import SchedulerSettings, setting_of
from foretell.placement import PlacementConfig
from foretell.services.scheduler.__main__ import SchedulerTuning, serve

WAIT_S = 60.0
"""A deadline that every peer that answers at all meets, however busy the machine is."""


async def until(condition: Callable[[], bool]) -> None:
    """Poll until `condition` holds; fails after `WAIT_S`."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)


class Scheduler:
    """A client of one running scheduler."""

    def __init__(self, ready: dict[str, Any], client: httpx.AsyncClient) -> None:
        self.ready = ready
        self.url: str = ready["url"]
        self.host, self.port = "127.0.0.1", int(self.url.rsplit(":", 1)[1])
        self.client = client

    async def complete(
        self, *, headers: dict[str, str] | None = None, **fields: Any
    ) -> httpx.Response:
        """Send a completion request and read the answer to its end."""
        body = json.dumps({"model": MODEL, "prompt": "hello", **fields})
        return await self.client.post("/v1/completions", content=body, headers=headers)

    async def metrics(self) -> str:
        return (await self.client.get("/metrics")).text

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of all samples of the metric `name` with these labels."""
        return sum(
            sample.value
            for family in text_string_to_metric_families(await self.metrics())
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    async def status(self) -> dict[str, Any]:
        return (await self.client.get("/status")).json()

    async def instance(self, instance_id: str) -> dict[str, Any]:
        instances = (await self.status())["instances"]
        return next(i for i in instances if i["instance_id"] == instance_id)

    async def until(self, condition: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until `condition` holds for /status."""
        async with asyncio.timeout(WAIT_S):
            while not condition(await self.status()):  # noqa: ASYNC110 - asked over HTTP
                await asyncio.sleep(0.01)

    async def until_metric(self, name: str, value: float, **labels: str) -> None:
        async with asyncio.timeout(WAIT_S):
            while await self.metric(name, **labels) < value:  # noqa: ASYNC110 - asked over HTTP
                await asyncio.sleep(0.01)

    async def until_idle(self) -> None:
        """Wait until no request is in progress and none outstanding on any engine."""
        await self.until(
            lambda s: s["in_progress"] == 0 and not any(i["outstanding"] for i in s["instances"])
        )

    def sdk(self, api_key: str = "unused") -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key=api_key, max_retries=0)


def instances_json(engines: Sequence[Engine], predictors: Sequence[str] = ()) -> str:
    addresses = [*predictors, *[""] * (len(engines) - len(predictors))]
    return json.dumps([e.config(p) for e, p in zip(engines, addresses, strict=True)])


def tuned(values: dict[str, Any]) -> SchedulerTuning:
    """Remove the tuning values from `values`; return them."""

    def taken(kind: type[Any]) -> dict[str, Any]:
        return {name: values.pop(name) for name in kind.__dataclass_fields__ if name in values}

    return SchedulerTuning(
        placement=PlacementConfig(**taken(PlacementConfig)), **taken(SchedulerTuning)
    )


@asynccontextmanager
async def running(
    folder: Path,
    engines: Sequence[Engine] = (),
    predictors: Sequence[str] = (),
    *,
    headers: dict[str, str] | None = None,
    all_up: bool = True,
    **changes: Any,
) -> AsyncIterator[Scheduler]:
    """A scheduler in front of `engines`, once it knows all of them to be up."""
    ready_file = folder / "scheduler.ready"
    ready_file.unlink(missing_ok=True)
    values = {
        "instances": instances_json(engines, predictors),
        "policy": "round_robin",
        "health_interval_s": 0.02,
        "engine_wait_s": 0.0,
        **changes,
    }
    values["policy"] = setting_of(values["policy"])
    tuning = tuned(values)
    settings = SchedulerSettings(ready_file=str(ready_file), **values)
    stop = asyncio.Event()
    task = asyncio.create_task(serve(settings, stop, seed=1, tuning=tuning))
    try:
        await until(lambda: ready_file.exists() or task.done())
        if task.done():
            task.result()
        ready = json.loads(ready_file.read_text())
        async with httpx.AsyncClient(
            base_url=ready["url"], headers=headers, timeout=WAIT_S, trust_env=False
        ) as client:
            scheduler = Scheduler(ready, client)
            if engines and all_up:
                await scheduler.until(lambda s: all(i["healthy"] for i in s["instances"]))
            yield scheduler
    finally:
        stop.set()
        await task
