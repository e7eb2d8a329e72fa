"""Starts the paced engines of a setting."""

from pathlib import Path

from bench.paced.engines import MODEL_NAME, start_launchers
from bench.placement.paced.settings import Setting
from bench.processes import Services
from foretell.services.process.memory_log import SHARED_MEMORY
from foretell.tools.harness.schedulers import Engines


async def start_paced(services: Services, setting: Setting, python: Path, model: Path) -> Engines:
    """Start all with their predictors, and warm them up."""
    started = await start_launchers(services, setting.engines, python, model)
    return Engines(
        MODEL_NAME,
        tuple(str(launcher.facts["url"]) for launcher in started),
        tuple(str(launcher.facts["predictor"]) for launcher in started),
        tuple(
            f"{SHARED_MEMORY}{services.folder}/engine-{i}.snapshots" for i in range(len(started))
        ),
    )
