"""Observed engines: what a predictor learns from their streams and metrics."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from emulated_engine import MODEL, running_engine
from engines import answer, engines
from schedulers import Scheduler, running, until

from foretell.config import PredictorSettings
from foretell.engine.doubt import DOUBTED, Doubt
from foretell.model import Prediction
from foretell.services.predictor.__main__ import serve as serve_predictor

pytestmark = pytest.mark.timeout(600)
SEATS = 4
METRICS = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m"} 3.0
sglang:num_queue_reqs{model_name="m"} 2.0
sglang:token_usage{model_name="m"} 0.5
sglang:num_used_tokens{model_name="m"} 800.0
sglang:context_len{model_name="m"} 4096.0
"""


@asynccontextmanager
async def observing(folder: Path, url: str, args: str = "") -> AsyncIterator[str]:
    """The address of a predictor that observes the engine at `url`."""
    address, ready, stop = f"unix:{folder}/observer", folder / "observer.ready", asyncio.Event()
    settings = PredictorSettings(
        name="engine-0", listen=address, engine_url=url, engine_args=args, ready_file=str(ready)
    )
    serving = asyncio.create_task(serve_predictor(settings, stop))
    try:
        await until(lambda: ready.exists() or serving.done())
        yield address
    finally:
        stop.set()
        await serving


def members(url: str, predictor: str, kind: str) -> str:
    engine = {"instance_id": "engine-0", "url": url, "predictor": predictor, "kind": kind}
    return json.dumps([engine])


def shows(**wanted: Any) -> Callable[[dict[str, Any]], bool]:
    return lambda s: all(s["instances"][0][name] == value for name, value in wanted.items())


async def ask(scheduler: Scheduler, tokens: int, *, stream: bool) -> dict[str, str]:
    body = {
        "model": MODEL,
        "prompt": "one two three",
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": stream,
    }
    response = await scheduler.client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return dict(response.headers)


async def test_replicas_share_what_they_see_and_say_that_it_is_an_approximation(
    tmp_path: Path,
) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    async with (
        running_engine(tmp_path, speedup=4.0, noise_ratio=0.0, max_num_seqs=SEATS) as engine,
        observing(tmp_path, engine.url, f"--max-num-seqs {SEATS}") as address,
    ):
        instances = members(engine.url, address, "openai")
        async with (
            running(tmp_path / "one", instances=instances, policy="slo") as one,
            running(tmp_path / "other", instances=instances, policy="slo") as other,
        ):
            for each in (one, other):
                await each.until(shows(approximations=["observed from outside"], healthy=True))
            long = [asyncio.create_task(ask(one, 400, stream=True)) for _ in range(SEATS)]
            await other.until(shows(running=SEATS, waiting=0, max_num_seqs=SEATS))
            waits = asyncio.create_task(ask(one, 5, stream=False))
            await other.until(shows(running=SEATS, waiting=1))
            headers = await ask(other, 5, stream=True)
            assert float(headers["x-foretell-predicted-ttft-s"]) > 0
            assert "observed from outside" in headers["x-foretell-calibration"]
            await asyncio.gather(*long, waits)
            await other.until(lambda s: s["instances"][0]["calibration_steps"] > 100)
            await other.until(shows(running=0, waiting=0))
            assert 'foretell_prediction_approximate{feature="observed from outside"' in (
                await other.metrics()
            )
            told = (await other.client.get(f"/explain/{headers['x-request-id']}")).json()
            (candidate,) = told["attempts"][0]["candidates"]
            assert candidate["predicted"]["approximations"] == ["observed from outside"]


async def test_what_a_scheduler_that_is_gone_has_sent_does_not_stay(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    async with (
        running_engine(tmp_path, speedup=1.0) as engine,
        observing(tmp_path, engine.url) as address,
    ):
        instances = members(engine.url, address, "openai")
        async with running(tmp_path / "other", instances=instances, policy="slo") as other:
            async with running(
                tmp_path / "one", instances=instances, policy="slo", drain_timeout_s=0.1
            ) as one:
                await one.until(shows(approximations=["observed from outside"], healthy=True))
                asked = asyncio.create_task(ask(one, 2000, stream=True))
                await other.until(shows(running=1))
            await asyncio.gather(asked, return_exceptions=True)
            await other.until(shows(running=0))


async def test_an_engine_like_sglang_says_how_many_it_serves_and_gets_no_fields(
    tmp_path: Path,
) -> None:
    async with engines(answer) as (engine,), observing(tmp_path, engine.url) as address:
        engine.metrics = METRICS
        instances = members(engine.url, address, "sglang")
        async with running(tmp_path, instances=instances, policy="slo") as scheduler:
            await scheduler.until(shows(max_num_seqs=3, healthy=True))
            assert (await scheduler.complete(stream=True)).status_code == 200
            sent = [each.body for each in engine.received if each.path == "/v1/completions"]
            assert sent
            assert all("vllm_xargs" not in each for each in sent)


async def test_an_engine_whose_predictions_are_far_off_is_placed_by_load_until_they_are_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, times = Doubt.add, 10.0

    def add_as_if(self: Doubt, prediction: Prediction, *_: float) -> None:
        add(self, prediction, 0.0, times * (prediction.ttft_s + prediction.tpot_s), 2.0)

    monkeypatch.setattr(Doubt, "add", add_as_if)
    async with (
        running_engine(tmp_path, speedup=8.0, noise_ratio=0.0) as engine,
        observing(tmp_path, engine.url) as address,
    ):
        instances = members(engine.url, address, "openai")
        async with running(tmp_path, instances=instances, policy="slo") as scheduler:
            await scheduler.until(shows(approximations=["observed from outside"], healthy=True))
            while (await scheduler.status())["instances"][0]["unpredicted"] != DOUBTED:
                await ask(scheduler, 20, stream=True)
            headers = await ask(scheduler, 20, stream=True)
            assert "x-foretell-predicted-e2e-s" not in headers
            assert await scheduler.metric("foretell_degraded_total", missing="accuracy") > 0
            assert await scheduler.metric("foretell_engine_unpredicted", reason=DOUBTED) == 1
            told = (await scheduler.client.get(f"/explain/{headers['x-request-id']}")).json()
            assert told["attempts"][0]["because"].endswith(DOUBTED)
            times = 1.0
            while (await scheduler.status())["instances"][0]["unpredicted"]:
                await ask(scheduler, 20, stream=True)
            assert float((await ask(scheduler, 20, stream=True))["x-foretell-predicted-e2e-s"]) > 0
