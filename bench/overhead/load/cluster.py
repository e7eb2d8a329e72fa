"""The processes under load: sidecars of busy engines, a tagger, schedulers, and what they use."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]

from bench.fake_engine import start_fake_engines
from bench.processes import Service, Services, feed, running_services, start_predictor
from foretell.config import setting_of
from foretell.services.process.children import Child
from foretell.tools.harness.cases import Size
from foretell.tools.harness.kernel import PROFILE

TICK_MS = 20
_READY_S, _START_S = 60.0, 240.0
_POLL_S = 0.05
_EIGHT = Size(8, 0)


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to place requests."""

    key: str
    title: str
    policy: str
    size: Size = _EIGHT
    tagger: bool = True
    schedulers: int = 1
    instances: int = 0
    """0: as many as there are busy engines; more: several instances share one engine."""
    most_per_s: float = 0.0
    """The highest rate that it is given; 0: all."""


class Cluster:
    """All that goes on while variants come and go; made by `running_cluster`."""

    def __init__(self, folder: Path, services: Services, engines: int) -> None:
        self.folder = folder
        self.engines = engines
        self.urls: list[str] = []
        self.sidecars: list[Service] = []
        self._services = services
        self._states: tuple[Size, Child] | None = None

    async def start(self, children: list[Child]) -> None:
        """Start what stays."""
        flags = ("--log-level=warning",)
        self.urls = await start_fake_engines(self.engines, TICK_MS, self.folder, children)
        self.tagger = await self._services.start(
            "tagger", "foretell.services.tagger", f"--listen=unix:{self.folder}/tagger.sock", *flags
        )
        self.sidecars = await asyncio.gather(
            *(
                start_predictor(self._services, i, PROFILE, *flags, start_timeout_s=_START_S)
                for i in range(self.engines)
            )
        )

    async def be_busy(self, size: Size) -> None:
        """Make the engines as busy as that."""
        if self._states is not None and self._states[0] == size:
            return
        await self.rest()
        command = [sys.executable, "-m", "bench.overhead.load.states"]
        sizes = [str(size.running), str(size.waiting)]
        endpoints = [feed(self._services, index) for index in range(self.engines)]
        log = self.folder / f"states-{time.monotonic_ns()}.log"
        child = await Child.spawn("states", [*command, *sizes, *endpoints], log)
        self._states = size, child
        while "publishing" not in log.read_text():
            if child.exit_code is not None:
                raise child.failure("ended")
            await asyncio.sleep(_POLL_S)

    async def rest(self) -> None:
        """No engine says anything any longer."""
        if self._states is not None:
            await self._states[1].stop(1.0)

    def instances(self, variant: Variant) -> str:
        """What a scheduler takes as `--instances`."""
        count = variant.instances or self.engines
        asks = variant.policy != "least_outstanding"
        entries = [
            {
                "instance_id": f"engine-{i}",
                "url": self.urls[i % self.engines],
                **({"predictor": self.sidecars[i % self.engines].facts["address"]} if asks else {}),
            }
            for i in range(count)
        ]
        file = self.folder / f"{variant.key}.json"
        file.write_text(json.dumps(entries))
        return str(file)


@asynccontextmanager
async def running_cluster(folder: Path, engines: int) -> AsyncIterator[Cluster]:
    """Yields the cluster without schedulers; ends all of its processes."""
    children: list[Child] = []
    async with running_services(folder) as services:
        cluster = Cluster(folder, services, engines)
        try:
            await cluster.start(children)
            yield cluster
        finally:
            await cluster.rest()
            await asyncio.gather(*(child.stop(1.0) for child in children))


class Schedulers:
    """Replicas of one variant, which serve."""

    def __init__(self, cluster: Cluster, started: Sequence[Service], logs: Sequence[Path]) -> None:
        self._groups = {
            "scheduler": _processes(started),
            "sidecars": _processes(cluster.sidecars),
            "tagger": [cluster.tagger.process],
        }
        self._urls = [each.facts["url"] for each in started]
        self.ports = [int(url.rpartition(":")[2]) for url in self._urls]
        self._logs = dict.fromkeys(logs, 0)

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds so far of the schedulers, the sidecars, and the tagger without the process in
        which its length model runs when nobody else wants to."""
        return {name: sum(map(_cpu_s, each)) for name, each in self._groups.items()}

    def logged(self) -> list[dict[str, Any]]:
        """The lines of the request logs since the last call."""
        lines: list[dict[str, Any]] = []
        for log, read in self._logs.items():
            with log.open("rb") as file:
                file.seek(read)
                lines += map(json.loads, file)
                self._logs[log] = file.tell()
        return lines


@asynccontextmanager
async def running_schedulers(cluster: Cluster, variant: Variant) -> AsyncIterator[Schedulers]:
    """Yields the variant's replicas once they know all instances."""
    await cluster.be_busy(variant.size)
    folder = cluster.folder
    async with running_services(folder) as services:
        logs = [folder / f"{variant.key}-{i}.jsonl" for i in range(variant.schedulers)]
        started = [
            await services.start(
                f"{variant.key}-{index}",
                "foretell.services.scheduler",
                f"--instances={cluster.instances(variant)}",
                f"--policy={setting_of(variant.policy)}",
                f"--tagger={cluster.tagger.facts['address'] if variant.tagger else ''}",
                f"--request-log={log}",
                "--log-level=warning",
                start_timeout_s=_START_S,
            )
            for index, log in enumerate(logs)
        ]
        for scheduler in started:
            await _until_ready(scheduler.facts["url"])
        yield Schedulers(cluster, started, logs)


async def _until_ready(url: str) -> None:
    deadline = time.monotonic() + _READY_S
    async with httpx.AsyncClient(trust_env=False, timeout=_READY_S) as client:
        while True:
            status = (await client.get(f"{url}/status")).raise_for_status().json()
            if all(instance["healthy"] for instance in status["instances"]):
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{url} found too few engines within {_READY_S:g} s")
            await asyncio.sleep(_POLL_S)


def _processes(services: Sequence[Service]) -> list[psutil.Process]:
    """Theirs, and those that they have started."""
    own = [service.process for service in services]
    return own + [child for each in own for child in each.children(recursive=True)]


def _cpu_s(process: psutil.Process) -> float:
    """CPU seconds of all threads, to the nanosecond: `cpu_times` counts hundredths of seconds,
    which is much for a dozen processes in a few seconds."""
    if not process.is_running():
        raise RuntimeError(f"process {process.pid} has ended meanwhile; its log tells why")
    total_ns = 0
    for thread in Path(f"/proc/{process.pid}/task").iterdir():
        with suppress(FileNotFoundError):  # it has just ended
            total_ns += int((thread / "schedstat").read_text().split()[0])
    return 1e-9 * total_ns
