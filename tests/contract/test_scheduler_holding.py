"""A policy that holds: requests wait in the scheduler, never for good, and lose nothing by it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from engines import WHOLE, Engine, answer, engines, gated
from schedulers import WAIT_S, Scheduler, running, until
from scripted_peers import LOAD, Predictor, serving

from foretell.v1 import predictor_pb2

FULL = predictor_pb2.Load(running=8, waiting=1, max_num_seqs=8, total_blocks=100)
FREE = predictor_pb2.Load(running=7, waiting=0, max_num_seqs=8, total_blocks=100)


def held(hold_max_s: float) -> dict[str, Any]:
    """Settings of a scheduler that holds requests for so long, and asks often."""
    times = {"hold_max_s": hold_max_s, "hold_recheck_s": 0.005}
    return {"policy": "late_binding", "policy_parameters": times}


def predictor_with(load: predictor_pb2.Load) -> Predictor:
    predictor = Predictor()
    predictor.predicted.load.CopyFrom(load)
    return predictor


@asynccontextmanager
async def one_full_engine(folder: Path) -> AsyncIterator[tuple[Scheduler, Predictor, Engine]]:
    """What comes is held, for longer than a test lasts, until the predictor says FREE."""
    full = predictor_with(FULL)
    async with (
        engines(answer) as (engine,),
        serving(full) as address,
        running(folder, [engine], [address], **held(10 * WAIT_S)) as scheduler,
    ):
        yield scheduler, full, engine


async def asked_often(predictor: Predictor) -> None:
    """It is asked again and again: a request is held, and who came before this has got in line."""
    before = len(predictor.asked)
    await until(lambda: len(predictor.asked) > before + 10)


async def test_a_request_waits_until_an_instance_is_open(tmp_path: Path) -> None:
    full, other = predictor_with(FULL), predictor_with(FULL)
    async with AsyncExitStack() as stack:
        both = await stack.enter_async_context(engines(answer, answer))
        addresses = [await stack.enter_async_context(serving(p)) for p in (full, other)]
        scheduler = await stack.enter_async_context(
            running(tmp_path, both, addresses, **held(10 * WAIT_S))
        )
        waiting = asyncio.create_task(scheduler.complete())
        await asked_often(full)
        assert not any((full.reserved, other.reserved, waiting.done()))
        other.predicted.load.CopyFrom(FREE)
        response = await waiting
        assert response.content == WHOLE
        assert response.headers["x-foretell-instance"] == "engine-1"
        assert response.headers["x-foretell-policy"] == "late_binding"


async def test_no_request_is_held_beyond_the_bound(tmp_path: Path) -> None:
    full = predictor_with(FULL)
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(engines(answer))
        address = await stack.enter_async_context(serving(full))
        scheduler = await stack.enter_async_context(running(tmp_path, one, [address], **held(0.2)))
        responses = await asyncio.gather(*(scheduler.complete() for _ in range(5)))
        assert [response.content for response in responses] == [WHOLE] * 5
        assert len(full.asked) > 5  # the first was held


async def test_a_client_that_leaves_lets_the_next_one_by(tmp_path: Path) -> None:
    async with one_full_engine(tmp_path) as (scheduler, full, _):
        gone = asyncio.create_task(scheduler.complete())
        await asked_often(full)
        behind = asyncio.create_task(scheduler.complete())
        await in_progress(scheduler, 2)
        await asked_often(full)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        await in_progress(scheduler, 1)
        full.predicted.load.CopyFrom(FREE)
        assert (await behind).content == WHOLE
        await until(lambda: len(full.reserved) == 1)


async def test_the_more_urgent_goes_first(tmp_path: Path) -> None:
    async with one_full_engine(tmp_path) as (scheduler, full, _):
        first = asyncio.create_task(scheduler.complete(max_tokens=1))
        await asked_often(full)
        later = asyncio.create_task(scheduler.complete(max_tokens=2))
        await in_progress(scheduler, 2)
        await asked_often(full)
        urgent = asyncio.create_task(
            scheduler.complete(max_tokens=3, headers={"x-vllm-priority": "-1"})
        )
        await in_progress(scheduler, 3)
        await asked_often(full)
        full.predicted.load.CopyFrom(FREE)
        await asyncio.gather(first, later, urgent)
        await until(lambda: len(full.reserved) == 3)
        assert [spec.max_tokens for spec in full.reserved] == [3, 1, 2]


async def test_an_instance_that_dies_while_all_wait_is_waited_for_no_more(tmp_path: Path) -> None:
    async with one_full_engine(tmp_path) as (scheduler, full, engine):
        waiting = asyncio.create_task(scheduler.complete())
        await asked_often(full)
        await engine.stop()
        response = await waiting
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "no_instance"


async def test_what_is_told_is_what_reserve_foretells(tmp_path: Path) -> None:
    """Instances are compared as if nobody else came; the prediction that is told knows better."""
    predictor, gate = Predictor(e2e_s=1.0), asyncio.Event()
    predictor.foretold = predictor_pb2.PredictResponse(ttft_s=2.0, e2e_s=3.0, load=LOAD)
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(engines(gated(gate)))
        address = await stack.enter_async_context(serving(predictor))
        log = tmp_path / "requests.jsonl"
        scheduler = await stack.enter_async_context(
            running(tmp_path, one, [address], policy="predicted_latency", request_log=str(log))
        )
        request = asyncio.create_task(scheduler.complete())
        await until(lambda: bool(predictor.reserved))
        gate.set()
        await request
        await until(lambda: log.exists() and bool(log.read_text()))
        assert json.loads(log.read_text())["predicted_e2e_s"] == 3.0
        assert predictor.announced_only == [True]


async def in_progress(scheduler: Scheduler, count: int) -> None:
    await scheduler.until(lambda status: status["in_progress"] == count)
