"""Streams without events send keep-alive comments, where configured, from the request on."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from engines import EVENTS, MODEL, REFUSAL, STREAM, answer, engines, gated, status
from schedulers import Scheduler, running

COMMENT = b": keep-alive\n\n"
BODY = {"model": MODEL, "prompt": "x", "stream": True}
OFTEN_S = 0.03
FOREVER_S = 1000.0


async def until_comments(parts: AsyncIterator[bytes], count: int) -> bytes:
    got = b""
    async with asyncio.timeout(20):
        while got.count(COMMENT) < count:
            got += await anext(parts)
    return got


@pytest.mark.parametrize("first", [0, 1])
async def test_a_silent_stream_gets_comments_before_and_after_its_first_token(
    tmp_path: Path, first: int
) -> None:
    gate = asyncio.Event()
    async with (
        engines(gated(gate, first=first)) as (engine,),
        running(tmp_path, [engine], stream_keep_alive_s=OFTEN_S) as scheduler,
        scheduler.client.stream("POST", "/v1/completions", json=BODY) as response,
    ):
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-request-id"]
        parts = response.aiter_raw()
        got = await until_comments(parts, 3)
        gate.set()
        got += b"".join([part async for part in parts])
        assert got.replace(COMMENT, b"") == STREAM
        assert got.count(COMMENT) >= 3
        assert got.startswith(EVENTS[0] if first else COMMENT)
        await scheduler.until_idle()
        assert await scheduler.metric("foretell_requests_total", status="200") == 1


async def test_within_an_event_there_is_no_comment(tmp_path: Path) -> None:
    async def slow(exchange):  # type: ignore[no-untyped-def]
        await exchange.head(200, "text/event-stream")
        for event in EVENTS:
            half = len(event) // 2
            await exchange.chunk(event[:half])
            await asyncio.sleep(4 * OFTEN_S)
            await exchange.chunk(event[half:])
        await exchange.chunk(b"")

    async with (
        engines(slow) as (engine,),
        running(tmp_path, [engine], stream_keep_alive_s=OFTEN_S) as scheduler,
    ):
        content = (await scheduler.complete(stream=True)).content
        assert content.replace(COMMENT, b"") == STREAM


async def test_an_engine_that_fails_behind_the_headers_is_still_repaired(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def late_failure(exchange):  # type: ignore[no-untyped-def]
        await gate.wait()
        await status(500)(exchange)

    async with (
        engines(late_failure, answer) as both,
        running(
            tmp_path, both, stream_keep_alive_s=OFTEN_S, health_interval_s=FOREVER_S
        ) as scheduler,
        scheduler.client.stream("POST", "/v1/completions", json=BODY) as response,
    ):
        parts = response.aiter_raw()
        got = await until_comments(parts, 1)
        gate.set()
        got += b"".join([part async for part in parts])
        assert got.replace(COMMENT, b"") == STREAM


async def ended_with_error(scheduler: Scheduler, gate: asyncio.Event) -> dict[str, object]:
    async with scheduler.client.stream("POST", "/v1/completions", json=BODY) as response:
        assert response.status_code == 200
        parts = response.aiter_raw()
        got = await until_comments(parts, 1)
        gate.set()
        got += b"".join([part async for part in parts])
    event = got.replace(COMMENT, b"")
    assert event.startswith(b"data: ")
    return json.loads(event.removeprefix(b"data: "))["error"]


async def test_what_fails_behind_the_headers_is_told_in_the_stream(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def refuse(exchange):  # type: ignore[no-untyped-def]
        await gate.wait()
        await status(400, REFUSAL)(exchange)

    async with (
        engines(refuse) as (engine,),
        running(
            tmp_path, [engine], stream_keep_alive_s=OFTEN_S, health_interval_s=FOREVER_S
        ) as scheduler,
    ):
        assert (await ended_with_error(scheduler, gate))["message"] == "bad sampling"
        assert await scheduler.metric("foretell_requests_total", status="400") == 1
        assert (await scheduler.complete(stream=True)).status_code == 400  # before any comment


async def test_while_it_waits_for_an_engine_too(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with (
        engines(answer) as (engine,),
        running(tmp_path, [engine], stream_keep_alive_s=OFTEN_S, engine_wait_s=0.5) as scheduler,
    ):
        await engine.stop()
        await scheduler.until(lambda s: not s["instances"][0]["healthy"])
        assert (await ended_with_error(scheduler, gate))["code"] == "no_instance"
        await scheduler.until_idle()


async def test_without_the_setting_nothing_comes_before_the_first_token(tmp_path: Path) -> None:
    async with engines(status(400, REFUSAL)) as (engine,), running(tmp_path, [engine]) as scheduler:
        assert (await scheduler.complete(stream=True)).status_code == 400
