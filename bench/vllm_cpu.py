"""Starts a real vLLM engine with its predictor; on the CPU, on cores where neither disturbs."""

import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil  # type: ignore[import-untyped]

from foretell.services.backend.commands import snapshot_endpoint
from foretell.tools.check.engine_args import CPU_ENVIRONMENT, GPU_ENVIRONMENT
from foretell.tools.check.hardware import find_gpus
from foretell.tools.harness.services import running_services

_START_TIMEOUT_S = 300.0
_ENGINE_CORE = "VLLM::EngineCor"  # as Linux shortens the name that vLLM gives the process


@dataclass(frozen=True, slots=True)
class LiveEngine:
    """Where engine and predictor are reached."""

    url: str
    predictor: str
    snapshots: str
    pinned: bool
    """The thread that computes has a core to itself, as far as our processes go."""


@asynccontextmanager
async def running_engine(python: str, model: str, engine_args: str) -> AsyncIterator[LiveEngine]:
    """Start both, and end them whatever happens. Raises `ChildFailed` where one does not serve."""
    os.environ.update(
        GPU_ENVIRONMENT if find_gpus() else CPU_ENVIRONMENT
    )  # which the engine inherits
    with TemporaryDirectory(prefix="foretell-live-") as folder:
        async with running_services(Path(folder)) as services:
            launcher = await services.start_vllm(
                0,
                model=model,
                served_name="random-llama",
                engine_args=engine_args,
                start_timeout_s=_START_TIMEOUT_S,
                more=(f"--python={python}",),
            )
            facts = launcher.facts
            children = tuple(launcher.process.children(recursive=True))
            yield LiveEngine(
                url=str(facts["url"]),
                predictor=str(facts["predictor"]),
                snapshots=snapshot_endpoint(Path(folder), "engine-0"),
                pinned=_pin(children),
            )


def _pin(processes: Sequence[psutil.Process]) -> bool:
    """Give the engine's computing thread a core, and the rest, ourselves included, the others.

    On a GPU the model does not compete with the API server for a core; on a CPU it should not
    either. The engine's other threads stay with the rest: they take in requests meanwhile.
    """
    cores = sorted(os.sched_getaffinity(0))
    engine = next((p for p in processes if p.name().startswith(_ENGINE_CORE)), None)
    if engine is None or len(cores) < 2:
        return False
    own, others = {cores[0]}, set(cores[1:])
    for process in (psutil.Process(), *processes):
        for thread in process.threads():
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(thread.id, others)
    os.sched_setaffinity(engine.pid, own)  # the first thread, which runs the model
    return True
