"""The engine of `bench.placement.vllm_cluster`: its steps last long enough, its answers end."""

import asyncio
import os
from pathlib import Path

import pytest

from bench.paced.cluster import start_paced
from bench.paced.engines import MODEL_NAME, EngineSpec, forget_prefixes
from bench.paced.load import send
from bench.paced.requests import draw, read_conversations
from bench.paced.watch import Watch, watching
from bench.processes import running_services
from tests.e2e_vllm.vllm_engines import ONE_THREAD_EACH

pytestmark = [pytest.mark.timeout(600), pytest.mark.vllm]
SPEC = EngineSpec(seats=4, blocks=27)


async def served(folder: Path) -> Watch:
    python, model = os.environ["FORETELL_VLLM_PYTHON"], os.environ["FORETELL_TINY_MODEL"]
    watch = Watch(SPEC.pace.step_time(), 1.0 / SPEC.slowdown)
    chains = draw(read_conversations(None), 12, 4.0, 1)
    async with running_services(folder) as services:
        engines = await start_paced(services, (SPEC,), Path(python), Path(model))
        async with watching(engines.feeds, watch):
            await forget_prefixes(engines.urls)
            # Raises unless every answer has the length that only the engine was told.
            await send(chains, engines.urls[0], MODEL_NAME, "run")
    return watch


def test_steps_last_and_answers_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ONE_THREAD_EACH.items():
        monkeypatch.setenv(name, value)
    watch = asyncio.run(served(tmp_path))
    assert watch.steps > 100
    assert watch.lateness > -0.01  # a sleep may last longer than asked for, never shorter
