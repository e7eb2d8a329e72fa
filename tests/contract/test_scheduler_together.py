"""The scheduler with the real tagger, the real predictor and the emulated engine."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from emulated_engine import MODEL, events, running_engine
from schedulers import WAIT_S, Scheduler, running, until

from foretell.config import PredictorSettings, TaggerSettings
from foretell.services.predictor.__main__ import serve as serve_predictor
from foretell.services.process.logs import JsonLines, _Text
from foretell.services.tagger.server import serve as serve_tagger
from foretell.tools.follower import following

pytestmark = pytest.mark.timeout(600)

WORDS = ("attempt 1 goes to engine-0", "on its way to engine-0", "ended on engine-0", "estimated")


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[tuple[Scheduler, str]]:
    """A scheduler with one engine, its sidecar and the tagger; and the sidecar's address."""
    stop = asyncio.Event()
    ready = {name: folder / f"{name}.ready" for name in ("predictor", "tagger")}
    async with running_engine(folder, noise_ratio=0.0) as engine:
        predictor = PredictorSettings(
            listen=f"unix://{folder}/predictor",
            snapshot_endpoint=f"shm://{folder}/engine-0.snapshots",
            profile="A30/Llama-2-7b-hf",
            ready_file=str(ready["predictor"]),
        )
        tagger = TaggerSettings(listen=f"unix://{folder}/tagger", ready_file=str(ready["tagger"]))
        peers = [
            asyncio.create_task(serve_predictor(predictor, stop)),
            asyncio.create_task(serve_tagger(tagger, None, stop)),
        ]
        try:
            await until(lambda: all(path.exists() for path in ready.values()))
            address = f"unix://{folder}/predictor"
            instances = [{"instance_id": "engine-0", "url": engine.url, "predictor": address}]
            async with running(
                folder,
                instances=json.dumps(instances),
                policy="predicted_latency",
                tagger=f"unix://{folder}/tagger",
                request_log=str(folder / "log"),
                explain_ratio=1.0,
            ) as scheduler:
                await scheduler.until(lambda s: s["instances"][0]["healthy"])
                # Without calibrated predictions, nothing would be kept for the explanation.
                await scheduler.until(lambda s: s["instances"][0]["calibration_steps"] is not None)
                yield scheduler, address
        finally:
            stop.set()
            await asyncio.gather(*peers)


async def explained(scheduler: Scheduler, request_id: str) -> dict[str, Any]:
    """The explanation of a request once it has ended."""
    async with asyncio.timeout(WAIT_S):
        while True:
            told = (await scheduler.client.get(f"/explain/{request_id}")).json()
            if told["attempts"][-1]["happened"] is not None:
                return dict(told)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_is_predicted_served_and_accounted_for(
    tmp_path: Path, stream: bool
) -> None:
    async with cluster(tmp_path) as (scheduler, address):
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 8,
            "ignore_eos": True,
            "stream": stream,
        }
        response = await scheduler.client.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        assert response.headers["x-foretell-emulated"] == "true"
        assert float(response.headers["x-foretell-predicted-e2e-s"]) > 0
        steps, unit = response.headers["x-foretell-calibration"].split()
        status = await scheduler.instance("engine-0")
        shown = status["calibration_steps"]
        assert status["approximations"] == []
        assert unit == "steps"
        assert 0 <= int(steps) <= shown
        if stream:
            assert len(events(response.text)) >= 8
        else:
            assert response.json()["usage"]["completion_tokens"] == 8

        told = await explained(scheduler, response.headers["x-request-id"])
        (attempt,) = told["attempts"]
        (candidate,) = attempt["candidates"]
        assert attempt["happened"]["output_tokens"] >= 8
        assert 0 < attempt["floor"]["e2e_s"] <= candidate["hindsight"]["e2e_s"] + 1e-9
        assert attempt["floor"]["output_tokens"] == attempt["happened"]["output_tokens"]
        assert candidate["predicted"]["calibration_steps"] == int(steps)

        log = tmp_path / "log"
        await until(lambda: len(log.read_text().splitlines()) == 1)
        line = json.loads(log.read_text())
        assert (line["emulated"], line["finished"], line["instance_id"]) == (True, True, "engine-0")
        assert line["output_tokens"] == pytest.approx(8, abs=2)  # the sidecar sees steps, not text
        assert line["predicted_e2e_s"] > 0
        assert line["explained"] == attempt
        for name in ("e2e", "output_tokens"):
            counted = await scheduler.metric(
                f"foretell_{name}_prediction_error_ratio_count", engine="emulated"
            )
            assert counted == 1
        assert await scheduler.metric("foretell_degraded_total") == 0
        async with following(address) as watcher:
            assert watcher.engine.believed.load().reserved == 0
        cards = (await scheduler.client.get("/v1/models")).json()["data"]
        assert [card["owned_by"] for card in cards] == ["foretell-emulated"]


async def test_the_lines_of_every_service_about_a_request_have_its_id(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="foretell.services")
    formats = (JsonLines(), _Text())

    def found() -> set[str]:
        """The loggers and words of records that show word and request id in both formats."""
        told = [(r.name, [each.format(r) for each in formats]) for r in caplog.records]
        return {
            f"{name}: {word}"
            for name, lines in told
            for word in WORDS
            if all("mine-7" in line and word in line for line in lines)
        }

    async with cluster(tmp_path) as (scheduler, _):
        async with asyncio.timeout(WAIT_S):  # the tagger's stream may not be open yet
            while len(found()) < len(WORDS):
                asked = {"model": MODEL, "max_tokens": 8, "headers": {"x-request-id": "mine-7"}}
                assert (await scheduler.complete(**asked)).status_code == 200
    assert found() == {
        "foretell.services.scheduler.placing.placer: attempt 1 goes to engine-0",
        "foretell.services.predictor.service: on its way to engine-0",
        "foretell.services.predictor.service: ended on engine-0",
        "foretell.services.tagger.estimators: estimated",
    }
