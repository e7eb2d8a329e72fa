"""Services of this project that a measurement starts, and ends whatever happens."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from foretell.services.process.children import Child
from foretell.tools.harness.processes import STOP_GRACE_S, start_service

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
