"""The scheduler's HTTP/1.1 server: the protocol and its limits."""

import asyncio
import json
from pathlib import Path

import pytest
from engines import (
    EVENTS,
    STREAM,
    WHOLE,
    Engine,
    engines,
    gated,
    hang_after_first_event,
)
from raw_http import CONNECTION, HEALTH, Connect, connect, engine, post
from schedulers import WAIT_S, running, until

__all__ = ["connect", "engine"]


async def test_a_connection_is_kept_and_its_requests_may_come_byte_by_byte(
    tmp_path: Path, connect: Connect, engine: Engine
) -> None:
    async with running(tmp_path, [engine]) as scheduler:
        client = await connect(scheduler)
        for stream in (False, True, False):
            data = post(stream=stream)
            for part in (data[:7], data[7:60], data[60:-3], data[-3:]):
                client.send(part)
                await asyncio.sleep(0.01)
            status, headers, body = await client.response()
            assert (status, body) == (200, STREAM if stream else WHOLE)
            assert "connection" not in headers
        assert len(engine.received) == 3


async def test_pipelined_requests_are_answered_in_order(
    tmp_path: Path, connect: Connect, engine: Engine
) -> None:
    async with running(tmp_path, [engine]) as scheduler:
        client = await connect(scheduler)
        client.send(post(stream=True) + HEALTH + post() + post(stream=True) + HEALTH)
        bodies = [(await client.response())[2] for _ in range(5)]
        assert bodies == [STREAM, b"", WHOLE, STREAM, b""]
        client.send(post())
        assert (await client.response())[2] == WHOLE


async def test_a_client_that_leaves_takes_what_it_pipelined_with_it(
    tmp_path: Path, connect: Connect
) -> None:
    async with (
        engines(hang_after_first_event) as (engine,),
        running(tmp_path, [engine]) as scheduler,
    ):
        client = await connect(scheduler)
        client.send(post(stream=True))
        await until(lambda: len(engine.received) == 1)
        client.send(post(stream=True) * 3)
        client.writer.transport.abort()
        await scheduler.until_idle()
        assert len(engine.received) == 1


async def test_a_client_may_ask_whether_its_body_is_wanted(
    tmp_path: Path, connect: Connect, engine: Engine
) -> None:
    head, body = post("expect: 100-continue").split(b"\r\n\r\n")
    async with running(tmp_path, [engine], max_body_bytes=100) as scheduler:
        client = await connect(scheduler)
        client.send(head + b"\r\n\r\n")
        assert (await client.head())[0] == 100
        client.send(body)
        assert (await client.response())[2] == WHOLE
        client.send(head.replace(b"content-length: ", b"content-length: 9") + b"\r\n\r\n")
        status, headers, _ = await client.response()
        # The body may come or not, so the next bytes could be a body or a request: it must close.
        assert (status, headers["connection"]) == (413, "close")


async def test_http_1_0_gets_no_chunks(tmp_path: Path, connect: Connect, engine: Engine) -> None:
    async with running(tmp_path, [engine]) as scheduler:
        for stream, text in ((True, STREAM), (False, WHOLE)):
            client = await connect(scheduler)
            client.send(post(stream=stream, version="1.0"))
            _, headers = await client.head()
            assert headers["connection"] == "close"
            assert "transfer-encoding" not in headers
            assert await client.closed() == text


async def test_a_connection_ends_when_the_client_wants_it(
    tmp_path: Path, connect: Connect, engine: Engine
) -> None:
    async with running(tmp_path, [engine]) as scheduler:
        client = await connect(scheduler)
        client.send(post("connection: close", stream=True))
        _, headers, body = await client.response()
        assert (headers["connection"], body) == ("close", STREAM)
        assert await client.closed() == b""


async def test_head_gets_no_body_and_targets_may_be_whole_urls(
    tmp_path: Path, connect: Connect, engine: Engine
) -> None:
    async with running(tmp_path, [engine]) as scheduler:
        client = await connect(scheduler)
        for path in (b"/health", b"/v1/models", b"/status"):
            request = HEALTH.replace(b"/health", path)
            client.send(request)
            status, headers, body = await client.response()
            client.send(request.replace(b"GET", b"HEAD"))
            assert await client.head() == (status, headers)
            assert headers["content-length"] == str(len(body))
        for target in (b"http://x/health", b"/health?a=b", b"/he%61lth", b"//x", b"*"):
            client.send(HEALTH.replace(b"/health", target))
            status, _, body = await client.response()
            assert status == (200 if b"h" in target else 404), (target, body)


async def test_an_offer_to_speak_something_else_is_ignored(
    tmp_path: Path, connect: Connect, engine: Engine
) -> None:
    async with running(tmp_path, [engine]) as scheduler:
        client = await connect(scheduler)
        for cut in (None, -3):
            data = post("connection: upgrade, http2-settings", "upgrade: h2c", "http2-settings: x")
            client.send(data[:cut])
            await asyncio.sleep(0.02)
            client.send(data[cut:] if cut else b"")
            assert (await client.response())[2] == WHOLE
        client.send(HEALTH.replace(b"\r\n\r\n", b"\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n"))
        assert (await client.response())[0] == 200


async def test_nobody_is_connected_to_other_hosts(
    tmp_path: Path, connect: Connect, engine: Engine
) -> None:
    async with running(tmp_path, [engine]) as scheduler:
        client = await connect(scheduler)
        client.send(b"CONNECT example.org:80 HTTP/1.1\r\nhost: example.org:80\r\n\r\n" + HEALTH)
        assert (await client.response())[0] == 405
        assert await client.closed() == b""


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 this is TLS\r\n\r\n",
        b"POST /x HTTP/1.1\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\n{}  ",
        b"POST /x HTTP/1.1\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0",
        b"GET /health HTTP/1.1\r\nno header\r\n\r\n",
    ],
)
async def test_what_is_no_request_is_refused_and_the_connection_closed(
    tmp_path: Path, connect: Connect, engine: Engine, nonsense: bytes
) -> None:
    async with running(tmp_path, [engine]) as scheduler:
        client = await connect(scheduler)
        client.send(nonsense)
        status, headers, body = await client.response()
        assert (status, headers["connection"]) == (400, "close")
        assert json.loads(body)["error"]["code"] == "http_invalid"
        assert await client.closed() == b""
        await scheduler.until_idle()
        assert engine.received == []


async def test_nonsense_behind_a_request_does_not_spoil_its_answer(
    tmp_path: Path, connect: Connect
) -> None:
    gate = asyncio.Event()
    async with engines(gated(gate)) as (engine,), running(tmp_path, [engine]) as scheduler:
        client = await connect(scheduler)
        client.send(post(stream=True) + b"\x00\x01 nonsense\r\n\r\n")
        assert (await client.head())[0] == 200
        client.send(b"more of it")
        gate.set()
        assert EVENTS[-1] in await client.closed()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_closes_only_its_side_gets_its_answers(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr(f"{CONNECTION}._PROBES_S", (0.02, 0.02))
    gate = asyncio.Event()
    async with engines(gated(gate)) as (engine,), running(tmp_path, [engine]) as scheduler:
        client = await connect(scheduler)
        client.send(post(stream=stream) + HEALTH)
        client.writer.write_eof()
        await until(lambda: len(engine.received) == 1)
        await asyncio.sleep(0.1)
        assert not engine.received[0].gone.is_set()
        gate.set()
        told = await client.closed()
        assert (EVENTS[-1] if stream else WHOLE) in told
        assert told.count(b"HTTP/1.1 200 OK") == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_closes_all_has_left(
    tmp_path: Path, connect: Connect, stream: bool
) -> None:
    async with (
        engines(hang_after_first_event) as (engine,),
        running(tmp_path, [engine]) as scheduler,
    ):
        client = await connect(scheduler)
        client.send(post(stream=stream))
        await until(lambda: len(engine.received) == 1)
        if stream:
            await client.head()
        client.writer.close()
        async with asyncio.timeout(WAIT_S):
            await engine.received[0].gone.wait()
        await scheduler.until_idle()
