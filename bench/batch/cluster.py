"""Two emulated engines with their sidecars, a scheduler and a batch service."""

import asyncio
import json
from dataclasses import dataclass

from bench.processes import Service, Services, start_emulated
from bench.processes import start_predictor as start_sidecar

ENGINES = 2
PROFILE = "H100/Llama-3.1-8B"
_START_S = 240.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where requests and batches are sent."""

    url: str
    batches_url: str
    model: str


async def start_cluster(services: Services, speedup: float) -> Cluster:
    """Start everything."""
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
        {
            "instance_id": engine.name,
            "url": engine.facts["url"],
            "predictor": sidecar.facts["address"],
        }
        for engine, sidecar in zip(engines, sidecars, strict=True)
    ]
    scheduler: Service = await services.start(
        "scheduler",
        "services.scheduler",
        f"--instances={json.dumps(instances)}",
        "--name=scheduler",
        start_timeout_s=_START_S,
    )
    url = str(scheduler.facts["url"])
    batch = await services.start(
        "batch",
        "services.batch",
        f"--folder={services.folder / 'batches'}",
        "--port=0",
        f"--schedulers={url}",
        start_timeout_s=_START_S,
    )
    model = str(engines[0].facts["model_name"])
    return Cluster(url, f"http://{batch.facts['address']}", model)
