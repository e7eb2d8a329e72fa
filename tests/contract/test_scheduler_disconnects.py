"""When a client disconnects, its request is cancelled on the engine."""

import asyncio
import json
from pathlib import Path

import pytest
from engines import (
    MODEL,
    Behaviour,
    engines,
    hang,
    hang_after_first_event,
    hang_after_headers,
)
from schedulers import Scheduler, running, until
from scripted_peers import Predictor, Tagger, serving

from foretell.services.http import connection
from foretell.v1 import predictor_pb2


async def send_raw(
    scheduler: Scheduler, *, stream: bool
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request on a connection that the test can cut."""
    body = json.dumps({"model": MODEL, "prompt": "x", "stream": stream}).encode()
    reader, writer = await asyncio.open_connection(scheduler.host, scheduler.port)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    return reader, writer


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("behaviour", [hang, hang_after_headers, hang_after_first_event])
@pytest.mark.parametrize("abruptly", [False, True])
async def test_the_engine_is_left_too(
    tmp_path: Path, behaviour: Behaviour, stream: bool, abruptly: bool
) -> None:
    sidecar = Predictor()
    async with (
        engines(behaviour) as (engine,),
        serving(sidecar) as address,
        running(tmp_path, [engine], [address]) as scheduler,
    ):
        _, writer = await send_raw(scheduler, stream=stream)
        await until(lambda: len(engine.received) == 1)
        assert (await scheduler.status())["in_progress"] == 1
        assert (await scheduler.instance("engine-0"))["outstanding"] == 1
        assert await scheduler.metric("foretell_requests_in_progress") == 1
        if abruptly:
            writer.transport.abort()
        else:
            writer.close()
        async with asyncio.timeout(20):
            await engine.received[0].gone.wait()
        await scheduler.until_idle()
        assert await scheduler.metric("foretell_requests_in_progress") == 0
        assert await scheduler.metric("foretell_requests_total", status="499") == 1
        assert await scheduler.metric("foretell_requests_total") == 1
        assert await scheduler.metric("foretell_retries_total") == 0
        assert await scheduler.metric("foretell_e2e_seconds_count") == 0
        await until(lambda: len(sidecar.ended) == 1)
        assert (await scheduler.instance("engine-0"))["healthy"]


async def test_a_client_that_closes_is_noticed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also before the first token, when no failed write could show that the client has gone."""
    at_once = connection._PROBES_S[:3]
    assert sum(at_once) < 0.2
    monkeypatch.setattr(connection, "_PROBES_S", (*at_once, 1000.0))
    async with engines(hang) as (engine,), running(tmp_path, [engine]) as scheduler:
        for number in range(1, 4):
            _, writer = await send_raw(scheduler, stream=True)
            await until(lambda number=number: len(engine.received) == number)
            writer.close()
            async with asyncio.timeout(20):
                await engine.received[-1].gone.wait()
        await scheduler.until_idle()


async def test_leaving_after_the_first_token_closes_the_engines_stream(tmp_path: Path) -> None:
    async with engines(hang_after_first_event) as (engine,), running(tmp_path, [engine]) as s:
        reader, writer = await send_raw(s, stream=True)
        await reader.readuntil(b"data: ")
        assert not engine.received[0].gone.is_set()
        writer.close()
        async with asyncio.timeout(20):
            await engine.received[0].gone.wait()
        await s.until_idle()


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_nobody_waited_for_teaches_that_it_is_longer(
    tmp_path: Path, stream: bool
) -> None:
    tagger, sidecar = Tagger(), Predictor()
    sidecar.completed = predictor_pb2.Seen(output_tokens=70, prompt_tokens=9)
    async with (
        engines(hang_after_first_event if stream else hang) as (engine,),
        serving(tagger) as address,
        serving(sidecar) as predictor,
        running(tmp_path, [engine], [predictor], tagger=address) as scheduler,
    ):
        _, writer = await send_raw(scheduler, stream=stream)
        await until(lambda: len(engine.received) == 1)
        writer.close()
        await until(lambda: len(tagger.observed) == 1)
        learned = tagger.observed[0]
        assert (learned.output_tokens, learned.censored) == (70, True)
        assert learned.request_id == tagger.asked[0].request_id


async def test_many_that_leave_at_every_moment_leave_nothing_behind(tmp_path: Path) -> None:
    sidecar = Predictor()
    async with (
        engines(hang_after_first_event, hang_after_first_event) as both,
        serving(sidecar) as address,
        running(tmp_path, both, [address, address], policy="predicted_latency") as scheduler,
    ):

        async def visit(i: int) -> None:
            _, writer = await send_raw(scheduler, stream=i % 2 == 0)
            await asyncio.sleep(0.0007 * i)
            writer.transport.abort()

        await asyncio.gather(*(visit(i) for i in range(60)))
        await scheduler.until_idle()
        async with asyncio.timeout(20):
            for received in (r for engine in both for r in engine.received):
                await received.gone.wait()
        await until(lambda: len(sidecar.ended) == len(sidecar.reserved))
        assert await scheduler.metric("foretell_requests_in_progress") == 0
