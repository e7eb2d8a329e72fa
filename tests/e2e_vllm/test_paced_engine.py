"""The engine of `bench.placement.vllm_cluster`: its steps last long enough and its answers end."""

import asyncio
import os
from pathlib import Path

import pytest

from bench.paced.engines import MODEL_NAME, EngineSpec, forget_prefixes, start_paced
from bench.paced.load import send
from bench.paced.pace import step_time
from bench.paced.requests import draw, read_conversations
from bench.paced.watch import Watched, watched
from foretell.tools.harness.services import running_services
from foretell.tools.live.tap import decoded, listening
from tests.e2e_vllm.vllm_engines import ONE_THREAD_EACH

pytestmark = [pytest.mark.timeout(600), pytest.mark.vllm]
SPEC = EngineSpec(seats=4, blocks=27)


async def served(folder: Path) -> Watched:
    python, model = os.environ["FORETELL_VLLM_PYTHON"], os.environ["FORETELL_TINY_MODEL"]
    chains = draw(read_conversations(None), 12, 4.0, 1)
    async with running_services(folder) as services:
        engines = await start_paced(services, (SPEC,), Path(python), Path(model))
        with listening(engines.feeds[0]) as heard:
            await forget_prefixes(engines.urls)
            # Raises unless every answer has its drawn length, which only the engine is told.
            await send(chains, engines.urls[0], MODEL_NAME, "run")
            snapshots = decoded(heard())
    return watched(snapshots, step_time(), SPEC.slowdown, since_s=0.0)


def test_steps_last_and_answers_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ONE_THREAD_EACH.items():
        monkeypatch.setenv(name, value)
    watch = asyncio.run(served(tmp_path))
    assert watch.steps > 100
    assert watch.lateness > -0.01  # a sleep may last longer than requested, never shorter
