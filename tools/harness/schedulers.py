"""Starts schedulers in front of running engines."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from foretell.config import setting_of
from foretell.services.backend.commands import snapshot_endpoint
from foretell.tools.harness.services import Service, Services, running_services

_START_TIMEOUT_S = 240.0  # two dozen processes at once, perhaps on a machine of two cores
_READY_TIMEOUT_S = 60.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Engines:
    """Running engines, and their predictors if they have any."""

    model: str
    urls: tuple[str, ...]
    predictors: tuple[str, ...] = ()
    """Their addresses; empty: nothing is predicted."""
    feeds: tuple[str, ...] = ()
    """The endpoints at which engines publish their snapshots."""

    @classmethod
    def of(cls, model: str, launchers: Sequence[Service], services: Services) -> "Engines":
        """The engines that `Services.start_vllm` has started, in the order of their numbers."""
        urls, predictors = (
            tuple(str(each.facts[name]) for each in launchers) for name in ("url", "predictor")
        )
        names = [f"engine-{index}" for index in range(len(launchers))]
        feeds = tuple(snapshot_endpoint(services.folder, name) for name in names)
        return cls(model, urls, predictors, feeds)

    def as_setting(self) -> str:
        """The value for a scheduler's `--instances`."""
        instances = [{"instance_id": f"engine-{i}", "url": url} for i, url in enumerate(self.urls)]
        for instance, predictor in zip(instances, self.predictors, strict=False):
            instance["predictor"] = predictor
        return json.dumps(instances)


@dataclass(frozen=True, slots=True)
class Schedulers:
    """Running scheduler replicas with one policy."""

    started: tuple[Service, ...]
    urls: tuple[str, ...]
    logs: tuple[Path, ...]

    async def degraded(self) -> Counter[str]:
        """How often placements were degraded, by what was missing."""
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
    """Yield `count` replicas once they can place. At the end they drain, which completes the logs.

    `folder` is created. `flags` go to each replica.
    """
    instances = _written(engines, folder)
    async with running_services(folder) as services:
        logs = tuple(folder / f"{policy}-{index}.jsonl" for index in range(count))
        started = await asyncio.gather(
            *(
                services.start(
                    f"{policy}-{index}",
                    "foretell.services.scheduler",
                    f"--instances={instances}",
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
        yield Schedulers(tuple(started), urls, logs)


def _written(engines: Engines, folder: Path) -> Path:
    folder.mkdir()
    file = folder / "instances.json"  # a thousand of them may be too long for an argument
    file.write_text(engines.as_setting())
    return file


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
