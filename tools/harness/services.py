"""Starts Foretell's services for a measurement, and always ends them."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from foretell.services.process.children import Child
from foretell.services.process.keeper import Program, start

_START_TIMEOUT_S = 60.0
_STOP_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class Service:
    """One running service."""

    facts: dict[str, Any]
    """Its ready file: addresses, ports, pid."""
    process: psutil.Process


class Services:
    """The running services of one measurement; made by `running_services`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._children: list[Child] = []

    async def start(
        self, name: str, module: str, *flags: str, start_timeout_s: float = _START_TIMEOUT_S
    ) -> Service:
        """Start `python -m module` with its log in `folder` and wait until it serves.

        Raises `ChildFailed` if the process does not serve in time; it has been ended then.
        """
        ready = self.folder / f"{name}.ready"
        argv = (sys.executable, "-P", "-m", module, *flags, f"--ready-file={ready}")
        log = self.folder / f"{name}.log"
        child = await start(Program(name, argv, log, ready, start_timeout_s))
        self._children.append(child)
        return Service(json.loads(ready.read_text()), psutil.Process(child.pid))

    async def start_vllm(
        self,
        index: int,
        *,
        model: str | Path,
        served_name: str,
        engine_args: str,
        start_timeout_s: float,
        more: tuple[str, ...] = (),
    ) -> Service:
        """Start a vLLM engine, `engine-INDEX`, with its predictor; `more`: flags of the launcher.

        Its `url`, and the address of its `predictor`, are in the facts. Raises `ChildFailed`.
        """
        return await self.start(
            f"launcher-{index}",
            "foretell.services.backend",
            "--engine=vllm",
            f"--name=engine-{index}",
            f"--model={model}",
            f"--served-model-name={served_name}",
            f"--run-dir={self.folder}",
            f"--engine-args={engine_args}",
            *more,
            start_timeout_s=start_timeout_s,
        )

    async def stop(self) -> None:
        """End all started services."""
        await asyncio.gather(*(child.stop(_STOP_GRACE_S) for child in self._children))


@asynccontextmanager
async def running_services(folder: Path) -> AsyncIterator[Services]:
    """Yield `Services` with their logs and sockets in `folder`; end all of them afterwards."""
    services = Services(folder)
    try:
        yield services
    finally:
        await services.stop()
