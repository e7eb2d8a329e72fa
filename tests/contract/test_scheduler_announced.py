"""Clients are told a planning value and a P90, and in long streams the remaining time."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from engines import (
    MODEL,
    Behaviour,
    Engine,
    answer,
    engines,
    gated,
    hang,
    hang_after_first_event,
)
from schedulers import Scheduler, running, until
from scripted_peers import Predictor, Tagger, serving

from foretell.engine.announced import Calibration, ObservedLatency
from foretell.services.scheduler.placing.tagging import TaggerClient


async def _first_byte(scheduler: Scheduler, body: dict[str, Any]) -> None:
    """Send a request, and disconnect after the first byte of the answer."""
    async with scheduler.client.stream("POST", "/v1/completions", json=body) as response:
        await anext(response.aiter_raw())


QUANTILES = ((0.1, 1.0), (0.5, 4.0), (0.9, 16.0))


def uncertain() -> Predictor:
    predictor = Predictor(e2e_s=6.0)
    early = tuple((level, seconds / 4) for level, seconds in QUANTILES)
    predictor.predicted = replace(
        predictor.predicted, ttft_quantiles=early, e2e_quantiles=QUANTILES
    )
    return predictor


async def test_headers_the_log_and_a_metric_tell_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with (
        engines(answer) as (engine,),
        serving(uncertain()) as address,
        running(
            tmp_path, [engine], [address], policy="predicted_latency", request_log=str(log)
        ) as scheduler,
    ):
        headers = (await scheduler.complete(stream=True)).headers
        told = {
            name: float(headers[f"x-foretell-predicted-{name}-s"])
            for name in ("ttft", "ttft-p90", "e2e", "e2e-p90")
        }
        assert told == {"ttft": 0.5, "ttft-p90": 4.0, "e2e": 2.0, "e2e-p90": 16.0}
        await scheduler.until_metric("foretell_announced_p90_total", 1, latency="e2e", kept="True")
        await scheduler.until_metric("foretell_announced_p90_total", 1, latency="ttft", kept="True")
    line = json.loads(log.read_text())
    assert (line["announced_e2e_s"], line["announced_e2e_p90_s"]) == (2.0, 16.0)
    assert (line["announced_ttft_s"], line["announced_ttft_p90_s"]) == (0.5, 4.0)
    assert line["predicted_e2e_s"] == 6.0  # the mean is only logged


async def test_what_was_seen_is_told_next_time(tmp_path: Path) -> None:
    """Answers here take milliseconds, so the told P90 falls to its lower bound."""
    async with (
        engines(answer) as (engine,),
        serving(uncertain()) as address,
        running(tmp_path, [engine], [address], policy="predicted_latency") as scheduler,
    ):
        for _ in range(20):
            await scheduler.complete(stream=True)
        await scheduler.until_metric("foretell_announced_p90_total", 20, latency="e2e", kept="True")
        headers = (await scheduler.complete(stream=True)).headers
        assert float(headers["x-foretell-predicted-e2e-p90-s"]) == 0.05 * 16.0


@asynccontextmanager
async def tagged(folder: Path, engine: Engine, **settings: object) -> AsyncIterator[Scheduler]:
    """A scheduler with `engine`, and a tagger that estimates one token for every answer."""
    async with (
        serving(uncertain()) as address,
        serving(Tagger(expected_tokens=1.0)) as tagger,
        running(
            folder, [engine], [address], policy="predicted_latency", tagger=tagger, **settings
        ) as scheduler,
    ):
        yield scheduler


@pytest.mark.parametrize("stream", [True, False])
async def test_the_taggers_estimate_is_told_if_it_comes_before_the_answer(
    tmp_path: Path, stream: bool
) -> None:
    """With an estimate of one token, the told end-to-end latency falls to the TTFT."""
    gate, log = asyncio.Event(), tmp_path / "log"
    async with (
        engines(gated(gate, first=0)) as (engine,),
        tagged(tmp_path, engine, request_log=str(log)) as scheduler,
    ):
        asked = asyncio.create_task(scheduler.complete(stream=stream))
        await scheduler.until_metric("foretell_lengths_revised_total", 1)
        gate.set()
        headers = (await asked).headers
        e2e_s = float(headers["x-foretell-predicted-e2e-s"])
        e2e_p90_s = float(headers["x-foretell-predicted-e2e-p90-s"])
        assert 0.5 < e2e_s < 1.0
        assert 4.0 < e2e_p90_s < 8.0
        assert float(headers["x-foretell-predicted-ttft-p90-s"]) == 4.0
    line = json.loads(log.read_text())
    logged = line["announced_e2e_s"], line["announced_e2e_p90_s"]
    assert logged == pytest.approx((e2e_s, e2e_p90_s), abs=1e-3)
    assert line["predicted_e2e_s"] == 6.0  # the prediction used for the placement


async def test_what_headers_have_told_stays_and_comments_know_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, hear = list[Callable[[], None]](), TaggerClient._answered
    monkeypatch.setattr(
        TaggerClient, "_answered", lambda *given: late.append(partial(hear, *given))
    )
    gate, log = asyncio.Event(), tmp_path / "log"
    async with (
        engines(gated(gate)) as (engine,),
        tagged(tmp_path, engine, request_log=str(log), stream_keep_alive_s=0.03) as scheduler,
        scheduler.client.stream(
            "POST", "/v1/completions", json={"model": MODEL, "prompt": "x", "stream": True}
        ) as response,
    ):
        await until(lambda: bool(late))
        late[0]()
        async for line in response.aiter_lines():
            if ": keep-alive" in line and float(line.rpartition("=")[2]) < 8.0:
                gate.set()
        told = float(response.headers["x-foretell-predicted-e2e-s"])
    assert told == json.loads(log.read_text())["announced_e2e_s"] == 2.0


@pytest.mark.parametrize("behaviour", [hang, hang_after_first_event])
async def test_who_leaves_teaches_that_it_would_have_taken_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behaviour: Behaviour
) -> None:
    learnt: list[tuple[ObservedLatency, ObservedLatency]] = []
    monkeypatch.setattr(Calibration, "observe", lambda *given: learnt.append(given[-2:]))
    async with (
        engines(behaviour) as (engine,),
        serving(uncertain()) as address,
        running(tmp_path, [engine], [address], policy="predicted_latency") as scheduler,
    ):
        body = {"model": MODEL, "prompt": "x", "stream": True}
        asked = asyncio.create_task(_first_byte(scheduler, body))
        await until(lambda: len(engine.received) == 1)
        if behaviour is hang_after_first_event:
            await asked
        asked.cancel()
        await until(lambda: bool(learnt))
    ((ttft, e2e),) = learnt
    assert not e2e.whole
    assert ttft.whole == (behaviour is hang_after_first_event)
    assert 0.0 <= ttft.seconds <= e2e.seconds


async def test_comments_in_a_stream_tell_what_is_left(tmp_path: Path) -> None:
    gate, body = asyncio.Event(), {"model": MODEL, "prompt": "x", "stream": True}
    async with (
        engines(gated(gate, first=0)) as (engine,),
        serving(uncertain()) as address,
        running(
            tmp_path,
            [engine],
            [address],
            policy="predicted_latency",
            stream_keep_alive_s=0.03,
        ) as scheduler,
        scheduler.client.stream("POST", "/v1/completions", json=body) as response,
    ):
        parts = response.aiter_lines()
        comment = await anext(parts)
        gate.set()
        async for _ in parts:
            pass
    name, *told = comment.split()
    assert name == ":"
    assert told[0] == "keep-alive"
    left = dict(each.split("=") for each in told[1:])
    names = ["ttft-left-s", "ttft-left-p90-s", "e2e-left-s", "e2e-left-p90-s"]
    assert list(left) == names
    assert 0.0 < float(left["ttft-left-s"]) <= float(left["e2e-left-s"]) < 5.0
    assert 15.0 < float(left["e2e-left-p90-s"]) < 17.0
