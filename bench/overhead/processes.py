"""Starts the services under measurement, and ends them whatever happens."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from services.process.children import Child, describe_exit

_START_TIMEOUT_S = 60.0
_STOP_GRACE_S = 5.0
_POLL_S = 0.02


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
        ready = self.folder / f"{name}.ready"
        argv = [sys.executable, "-m", module, *flags, f"--ready-file={ready}"]
        child = await Child.spawn(name, argv, self.folder / f"{name}.log")
        self._children.append(child)
        deadline = time.monotonic() + start_timeout_s
        while not ready.exists():
            if child.exit_code is not None:
                raise child.failure(describe_exit(child.exit_code))
            if time.monotonic() > deadline:
                raise child.failure(f"did not serve within {start_timeout_s:g} s")
            await asyncio.sleep(_POLL_S)
        service = Service(name, json.loads(ready.read_text()), psutil.Process(child.pid))
        self._started.append(service)
        return service

    async def stop(self) -> None:
        """End every process that was started, whether it came to serve or not."""
        await asyncio.gather(*(child.stop(_STOP_GRACE_S) for child in self._children))


@asynccontextmanager
async def running_services(folder: Path) -> AsyncIterator[Services]:
    """Yields what starts services with their logs and sockets in `folder`; ends all of them."""
    services = Services(folder)
    try:
        yield services
    finally:
        await services.stop()
