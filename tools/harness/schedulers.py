"""Starts schedulers in front of engines that serve, and knows both."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
from prometheus_client.parser import text_string_to_metric_families

from foretell.config import setting_of
from foretell.tools.harness.services import Services, running_services
from foretell.v1 import predictor_pb2, predictor_pb2_grpc

_START_TIMEOUT_S = 240.0  # two dozen processes at once, perhaps on a machine of two cores
_READY_TIMEOUT_S = 60.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Engines:
    """Engines and their predictors, which serve."""

    model: str
    urls: tuple[str, ...]
    predictors: tuple[str, ...]
    """gRPC addresses."""
    feeds: tuple[str, ...]
    """Where the engines publish their snapshots."""

    def as_setting(self) -> str:
        """What a scheduler takes as `--instances`."""
        pairs = enumerate(zip(self.urls, self.predictors, strict=True))
        return json.dumps(
            [{"instance_id": f"engine-{i}", "url": u, "predictor": p} for i, (u, p) in pairs]
        )

    async def dispatch_delay_s(self) -> float:
        """The mean of the dispatch delays that the predictors have learned."""
        delays_s = await asyncio.gather(*map(_dispatch_delay_s, self.predictors))
        return sum(delays_s) / len(delays_s)


async def _dispatch_delay_s(address: str) -> float:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = predictor_pb2_grpc.PredictorStub(channel)
        status = await stub.Status(predictor_pb2.StatusRequest(), timeout=_READY_TIMEOUT_S)
        return float(status.dispatch_delay_s)


@dataclass(frozen=True, slots=True)
class Schedulers:
    """Replicas of one policy, which serve."""

    services: Services
    urls: tuple[str, ...]
    logs: tuple[Path, ...]

    async def degraded(self) -> Counter[str]:
        """How often placements have done without what they wanted, by what that was."""
        counts: Counter[str] = Counter()
        async with httpx.AsyncClient(trust_env=False, timeout=_READY_TIMEOUT_S) as client:
            for url in self.urls:
                page = (await client.get(f"{url}/metrics")).raise_for_status().text
                for family in text_string_to_metric_families(page):
                    for sample in family.samples:
                        if sample.name == "foretell_degraded_total":
                            counts[sample.labels["missing"]] += int(sample.value)
        return counts


@asynccontextmanager
async def running_schedulers(
    folder: Path, engines: Engines, policy: str, count: int, *flags: str
) -> AsyncIterator[Schedulers]:
    """Yields `count` replicas once they can place; at the end they drain and their logs are full.

    `flags` go to each of them.
    """
    async with running_services(folder) as services:
        logs = tuple(folder / f"{policy}-{index}.jsonl" for index in range(count))
        started = await asyncio.gather(
            *(
                services.start(
                    f"{policy}-{index}",
                    "foretell.services.scheduler",
                    f"--instances={engines.as_setting()}",
                    f"--policy={setting_of(policy)}",
                    f"--request-log={log}",
                    f"--name={index}",
                    "--log-level=warning",
                    *flags,
                    start_timeout_s=_START_TIMEOUT_S,
                )
                for index, log in enumerate(logs)
            )
        )
        urls = tuple(scheduler.facts["url"] for scheduler in started)
        await asyncio.gather(*(_until_ready(url, len(engines.urls)) for url in urls))
        yield Schedulers(services, urls, logs)


async def _until_ready(url: str, instances: int) -> None:
    """Wait until a scheduler has found all engines alive."""
    deadline = time.monotonic() + _READY_TIMEOUT_S
    async with httpx.AsyncClient(trust_env=False) as client:
        while True:
            status = (await client.get(f"{url}/status")).raise_for_status().json()
            if sum(instance["healthy"] for instance in status["instances"]) == instances:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{url} found too few engines within {_READY_TIMEOUT_S:g} s")
            await asyncio.sleep(_POLL_S)
