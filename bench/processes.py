"""Processes under measurement: starts and ends them, and measures the CPU time of all others."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from services.process.children import Child
from tools.harness.processes import STOP_GRACE_S, start_service

_START_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Service:
    """One process that serves."""

    name: str
    facts: dict[str, Any]
    """Its ready file: addresses, ports, pid."""
    process: psutil.Process

    def cpu_s(self) -> float:
        """CPU seconds, user and system, that all its threads have used so far."""
        times = self.process.cpu_times()
        return float(times.user + times.system)


class Services:
    """The running services of one benchmark; made by `running_services`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._children: list[Child] = []
        self._started: list[Service] = []

    def cpu_s(self) -> float:
        """CPU seconds that all services have used so far."""
        return sum(service.cpu_s() for service in self._started)

    async def start(
        self, name: str, module: str, *flags: str, start_timeout_s: float = _START_TIMEOUT_S
    ) -> Service:
        """Start `python -m module` and wait until it serves; raises `ChildFailed`."""
        child, facts = await start_service(
            name, module, *flags, folder=self.folder, timeout_s=start_timeout_s
        )
        self._children.append(child)
        service = Service(name, facts, psutil.Process(child.pid))
        self._started.append(service)
        return service

    async def stop(self) -> None:
        """End every process that came to serve."""
        await asyncio.gather(*(child.stop(STOP_GRACE_S) for child in self._children))


@asynccontextmanager
async def running_services(folder: Path) -> AsyncIterator[Services]:
    """Yields `Services` with their logs and sockets in `folder`; ends all of them."""
    services = Services(folder)
    try:
        yield services
    finally:
        await services.stop()


async def start_emulated(
    services: Services, index: int, profile: str, *flags: str, start_timeout_s: float
) -> Service:
    """An emulated engine, `engine-INDEX`, that publishes to `feed`."""
    return await services.start(
        f"engine-{index}",
        "services.backend.emulator",
        f"--name=engine-{index}",
        f"--snapshot-endpoint={feed(services, index)}",
        f"--profile={profile}",
        *flags,
        start_timeout_s=start_timeout_s,
    )


async def start_predictor(
    services: Services, index: int, profile: str, *flags: str, start_timeout_s: float
) -> Service:
    """The predictor of `engine-INDEX`."""
    return await services.start(
        f"predictor-{index}",
        "services.predictor",
        f"--name=engine-{index}",
        f"--listen=unix:{services.folder}/predictor-{index}.sock",
        f"--snapshot-endpoint={feed(services, index)}",
        f"--profile={profile}",
        *flags,
        start_timeout_s=start_timeout_s,
    )


def feed(services: Services, index: int) -> str:
    """Where `engine-INDEX` publishes its snapshots."""
    return f"ipc://{services.folder}/engine-{index}.ipc"


class OthersClock:
    """Measures how many cores the processes of others keep busy."""

    def __init__(self, ours_s: Callable[[], float]) -> None:
        """`ours_s` gives the CPU seconds of our processes, without this one."""
        self._ours_s = ours_s
        self._started = self._read()

    def cores(self) -> float:
        """Mean since this clock was made."""
        elapsed_s, others_s = (a - b for a, b in zip(self._read(), self._started, strict=True))
        return max(0.0, others_s / elapsed_s)

    def _read(self) -> tuple[float, float]:
        machine = psutil.cpu_times()
        idle_s = machine.idle + getattr(machine, "iowait", 0.0)
        # Linux counts guests' time in `user` as well.
        busy_s = sum(machine) - idle_s - getattr(machine, "guest", 0.0)
        return time.monotonic(), busy_s - time.process_time() - self._ours_s()
