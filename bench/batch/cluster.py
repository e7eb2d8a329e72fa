"""Two engines with their sidecars, a scheduler and a batch service."""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

from bench.paced.engines import CO_SCHEDULER, MODEL_NAME, EngineSpec, start_launchers
from bench.paced.engines import PROFILE as PACED_PROFILE
from bench.processes import Service, Services, start_emulated
from bench.processes import start_predictor as start_sidecar

ENGINES = 2
PROFILE = "H100/Llama-3.1-8B"
_START_S = 240.0
_SEATS, _BLOCKS = 48, 132
"""The real engines have as many KV tokens as the profile's, in blocks of vLLM's on a CPU."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What engines are, and what online requests to them are like."""

    what: str
    profile: str
    speedup: float
    """Speed of the engines' clocks. Times and rates are otherwise the profile's."""
    rate_per_s: float
    ttft_s: float
    """Targets, where they are told."""
    tpot_s: float


KINDS = {
    "emulated": Kind("emulated engines", PROFILE, 0.25, 15.0, 0.04, 0.02),
    "vllm": Kind("real vLLM engines on the CPU", PACED_PROFILE, 0.25, 4.0, 0.5, 0.08),
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where requests and batches are sent."""

    url: str
    batches_url: str
    model: str


async def start_cluster(services: Services, speedup: float) -> Cluster:
    """Start everything, with emulated engines."""
    speed = f"--speedup={speedup:g}"
    started = await asyncio.gather(
        *(
            start_emulated(services, index, PROFILE, speed, start_timeout_s=_START_S)
            for index in range(ENGINES)
        ),
        *(
            start_sidecar(services, index, PROFILE, start_timeout_s=_START_S)
            for index in range(ENGINES)
        ),
    )
    engines, sidecars = started[:ENGINES], started[ENGINES:]
    instances = [
        _instance(engine.name, engine.facts["url"], sidecar.facts["address"])
        for engine, sidecar in zip(engines, sidecars, strict=True)
    ]
    return await _start_front(services, instances, str(engines[0].facts["model_name"]))


async def start_vllm_cluster(
    services: Services, speedup: float, python: Path, model: Path
) -> Cluster:
    """Start everything, with real vLLM engines that know both classes of requests and whose steps
    last as long as the profile says."""
    spec = EngineSpec(_SEATS, _BLOCKS, 1.0 / speedup, CO_SCHEDULER)
    started = await start_launchers(services, (spec,) * ENGINES, python, model)
    instances = [
        _instance(f"engine-{index}", launcher.facts["url"], launcher.facts["predictor"])
        for index, launcher in enumerate(started)
    ]
    return await _start_front(services, instances, MODEL_NAME)


def _instance(name: str, url: object, predictor: object) -> dict[str, object]:
    return {"instance_id": name, "url": url, "predictor": predictor}


async def _start_front(
    services: Services, instances: list[dict[str, object]], model: str
) -> Cluster:
    scheduler: Service = await services.start(
        "scheduler",
        "foretell.services.scheduler",
        f"--instances={json.dumps(instances)}",
        "--name=scheduler",
        start_timeout_s=_START_S,
    )
    url = str(scheduler.facts["url"])
    batches = await start_batches(services, url, "batches")
    return Cluster(url, url_of(batches), model)


async def start_batches(
    services: Services, url: str, name: str, *flags: str, folder: str = ""
) -> Service:
    """Start a batch service before the scheduler at `url`, with a folder of its own or an existing
    one."""
    return await services.start(
        name,
        "foretell.services.batch",
        f"--folder={services.folder / (folder or f'{name}.files')}",
        "--port=0",
        f"--schedulers={url}",
        *flags,
        start_timeout_s=_START_S,
    )


def url_of(batches: Service) -> str:
    """The address of a batch service."""
    return f"http://{batches.facts['address']}"
