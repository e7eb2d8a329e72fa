"""Limits on what clients may occupy: bytes, time, and answers that they do not read."""

import asyncio
import json
import socket
from pathlib import Path

import pytest
from engines import (
    EVENTS,
    Engine,
    Exchange,
    engines,
    gated,
)
from raw_http import CONNECTION, HEALTH, Client, Connect, connect, engine, post
from schedulers import WAIT_S, running

from foretell.http1.response import Response
from foretell.services.http.exchange import Exchange as Answered
from foretell.services.http.server import Listener, Server

__all__ = ["connect", "engine"]


async def test_a_head_is_limited_in_bytes_and_headers(
    tmp_path: Path, connect: Connect, engine: Engine
) -> None:
    long = b"GET /health HTTP/1.1\r\nx: " + b"y" * 150_000
    many = b"GET /health HTTP/1.1\r\n" + b"".join(b"x-%d: y\r\n" % i for i in range(300)) + b"\r\n"
    url = b"GET /" + b"y" * 150_000
    async with running(tmp_path, [engine]) as scheduler:
        for head in (long, long + b"\r\n\r\n", many, url):
            client = await connect(scheduler)
            for i in range(0, len(head), 16_384):  # piece by piece
                client.send(head[i : i + 16_384])
                await asyncio.sleep(0.002)
            status, _, body = await client.response()
            assert (status, json.loads(body)["error"]["code"]) == (431, "request_too_large")
            await client.closed()


async def test_a_head_that_does_not_arrive_is_given_up(
    tmp_path: Path, connect: Connect, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{CONNECTION}._HEAD_DEADLINE_S", 0.05)
    monkeypatch.setattr("foretell.services.http.server._SWEEP_S", 0.01)
    async with running(tmp_path, [engine]) as scheduler:
        slow, silent = await connect(scheduler), await connect(scheduler)
        slow.send(b"GET /hea")
        assert await silent.closed() == b""
        assert (await slow.head())[0] == 408
        await slow.closed()


async def test_an_idle_connection_is_closed(
    tmp_path: Path, connect: Connect, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foretell.services.http.server._SWEEP_S", 0.01)
    async with running(tmp_path, [engine]) as scheduler:
        monkeypatch.setattr(f"{CONNECTION}._IDLE_S", 0.1)
        client = await connect(scheduler)
        client.send(HEALTH)
        assert (await client.response())[0] == 200
        assert await client.closed() == b""


async def test_an_answer_may_take_longer_than_any_wait_for_the_client(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foretell.services.http.server._SWEEP_S", 0.01)
    gate = asyncio.Event()
    async with engines(gated(gate)) as (engine,), running(tmp_path, [engine]) as scheduler:
        client = await connect(scheduler)
        client.send(HEALTH)
        await client.response()
        for name in ("_IDLE_S", "_HEAD_DEADLINE_S", "STALL_S"):
            monkeypatch.setattr(f"{CONNECTION}.{name}", 0.01)
        client.send(post(stream=True))
        assert (await client.head())[0] == 200
        await asyncio.sleep(0.1)
        gate.set()
        assert EVENTS[-1] in await client.closed()


async def test_a_body_without_end_is_cut_off(
    tmp_path: Path, connect: Connect, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{CONNECTION}._MOST_DRAINED_BYTES", 1 << 20)
    async with running(tmp_path, [engine], max_body_bytes=1000) as scheduler:
        client = await connect(scheduler)
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        client.send(head)

        async def send_all() -> None:
            for _ in range(50_000):
                client.send(b"1000\r\n" + b"x" * 0x1000 + b"\r\n")
                await client.writer.drain()

        with pytest.raises(ConnectionError):
            await send_all()
        await scheduler.until_idle()
        assert await scheduler.metric("foretell_requests_total", status="413") == 1
        assert engine.received == []


async def test_a_client_that_does_not_read_stops_its_engine_and_is_given_up(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{CONNECTION}.STALL_S", 0.3)
    monkeypatch.setattr("foretell.services.http.server._SWEEP_S", 0.01)
    written = 0

    async def endless(exchange: Exchange) -> None:
        nonlocal written
        await exchange.head(200, "text/event-stream")
        await exchange.chunk(b"data: {}\n\n")
        while written < 1 << 30:
            await exchange.chunk(b"data: " + b"x" * 65_536 + b"\n\n")
            written += 65_536

    async with engines(endless) as (engine,), running(tmp_path, [engine]) as scheduler:
        client = await connect(scheduler)
        client.send(post(stream=True))
        assert (await client.head())[0] == 200
        await scheduler.until_metric("foretell_requests_total", 1, status="499")
        await scheduler.until_idle()
        assert written < 100 << 20


async def test_a_client_that_reads_slowly_gets_all(tmp_path: Path, connect: Connect) -> None:
    async def much(exchange: Exchange) -> None:
        await exchange.head(200, "text/event-stream")
        for i in range(300):
            await exchange.chunk(b'data: {"%d' % i + b"x" * 65_536 + b'": 0}\n\n')
        await exchange.chunk(b"")

    async with engines(much) as (engine,), running(tmp_path, [engine]) as scheduler:
        client = await connect(scheduler)
        client.send(post(stream=True))
        await asyncio.sleep(0.2)
        _, _, body = await client.response()
        assert [line[:11] for line in body.split(b"\n\n")[:-1]] == [
            (b'data: {"%dxxx' % i)[:11] for i in range(300)
        ]
        await scheduler.until_idle()


async def test_answers_that_are_not_read_hold_up_the_requests_behind_them(
    tmp_path: Path, connect: Connect, engine: Engine
) -> None:
    """A client that reads later gets all of it, even after it has closed its sending side."""
    page = HEALTH.replace(b"/health", b"/console/requests.js")
    async with running(tmp_path, [engine]) as scheduler:
        size = len((await scheduler.client.get("/console/requests.js")).content)
        client = await connect(scheduler)
        client.send(page * 600 + HEALTH)
        client.writer.write_eof()
        await asyncio.sleep(0.5)
        told = await client.closed()
        assert told.count(b"HTTP/1.1 200 OK") == 601
        assert len(told) > 600 * size


async def test_idle_connections_end_with_the_server(
    tmp_path: Path, connect: Connect, engine: Engine
) -> None:
    async with running(tmp_path, [engine]) as scheduler:
        idle, begun = await connect(scheduler), await connect(scheduler)
        idle.send(HEALTH)
        assert (await idle.response())[0] == 200
        begun.send(HEALTH[:9])
    assert await idle.closed() == b""
    assert await begun.closed() == b""


async def test_a_server_that_ends_answers_what_is_on_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """These are a request on an idle connection, and a connection that waits to be accepted."""
    monkeypatch.setattr(f"{CONNECTION}.RETIRE_S", 1000.0)
    ready, stop = asyncio.Event(), asyncio.Event()
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.setblocking(False)

    async def page(exchange: Answered) -> None:
        exchange.respond(Response(200, b"here"))

    server = Server(page)
    ending = asyncio.create_task(
        server.run([Listener(sock)], stop, on_ready=ready.set, drain_s=WAIT_S)
    )
    await ready.wait()
    idle = Client(*await asyncio.open_connection(*sock.getsockname()))
    idle.send(HEALTH)
    assert (await idle.response())[0] == 200
    with socket.create_connection(sock.getsockname()) as late:
        stop.set()  # the event loop has not run since `late` was connected
        late.setblocking(False)
        new = Client(*await asyncio.open_connection(sock=late))
        for client in (idle, new):
            client.send(HEALTH)
            status, headers, body = await client.response()
            assert (status, headers["connection"], body) == (200, "close", b"here")
            assert await client.closed() == b""
        await ending
        for client in (idle, new):
            client.writer.close()


async def flood(client: Client) -> None:
    """Send until the server has closed the connection."""
    async with asyncio.timeout(WAIT_S):
        while True:
            client.send(b"a" * 65_536)
            await client.writer.drain()


async def test_who_sends_a_head_without_end_is_cut_off(
    tmp_path: Path, connect: Connect, engine: Engine
) -> None:
    async with running(tmp_path, [engine]) as scheduler:
        client = await connect(scheduler)
        client.send(b"GET /health HTTP/1.1\r\nhost: x\r\nx-a: ")
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            await flood(client)
        assert (await scheduler.client.get("/health")).status_code == 200
