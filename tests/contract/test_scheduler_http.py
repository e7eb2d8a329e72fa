"""The scheduler's HTTP/1.1 server: what it speaks, and what it bounds."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from engines import (
    EVENTS,
    MODEL,
    STREAM,
    WHOLE,
    Engine,
    Exchange,
    answer,
    engines,
    gated,
    hang_after_first_event,
)
from schedulers import WAIT_S, Scheduler, running, until

from foretell.services.scheduler.http.exchange import Exchange as Answered
from foretell.services.scheduler.http.server import Listener, Server
from foretell.services.scheduler.http1.response import Response

CONNECTION = "foretell.services.scheduler.http.connection"
HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


def post(*headers: str, stream: bool = False, version: str = "1.1") -> bytes:
    """A good completion request as bytes."""
    body = json.dumps({"model": MODEL, "prompt": "x", "stream": stream})
    lines = [f"POST /v1/completions HTTP/{version}", "host: x", f"content-length: {len(body)}"]
    return "\r\n".join([*lines, *headers, "", body]).encode()


class Client:
    """One connection, written and read byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def head(self) -> tuple[int, dict[str, str]]:
        """The status and headers of the next response."""
        async with asyncio.timeout(WAIT_S):
            text = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        line, *lines = text.rstrip().split("\r\n")
        headers = dict(each.split(": ", 1) for each in lines)
        return int(line.split(" ")[1]), headers

    async def response(self) -> tuple[int, dict[str, str], bytes]:
        """The next response, whole."""
        status, headers = await self.head()
        async with asyncio.timeout(WAIT_S):
            if "content-length" in headers:
                length = int(headers["content-length"])
                return status, headers, await self.reader.readexactly(length)
            body = b""
            while size := int(await self.reader.readline(), 16):
                body += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readline()
            return status, headers, body

    async def closed(self) -> bytes:
        """What still comes until the server closes the connection."""
        async with asyncio.timeout(WAIT_S):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with engines(answer) as made:
        yield made[0]


Connect = Callable[[Scheduler], Awaitable[Client]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Opens connections, which are closed after the test."""
    async with AsyncExitStack() as opened:

        async def made(scheduler: Scheduler) -> Client:
            client = Client(*await asyncio.open_connection(scheduler.host, scheduler.port))
            opened.callback(client.writer.transport.abort)
            opened.callback(client.writer.close)
            return client

        yield made


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
        # Its body may come or not: what comes next could be either.
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


async def test_a_head_is_limited_in_bytes_and_headers(
    tmp_path: Path, connect: Connect, engine: Engine
) -> None:
    long = b"GET /health HTTP/1.1\r\nx: " + b"y" * 150_000
    many = b"GET /health HTTP/1.1\r\n" + b"".join(b"x-%d: y\r\n" % i for i in range(300)) + b"\r\n"
    url = b"GET /" + b"y" * 150_000
    async with running(tmp_path, [engine]) as scheduler:
        for head in (long, long + b"\r\n\r\n", many, url):
            client = await connect(scheduler)
            for i in range(0, len(head), 16_384):  # never whole, and never at once
                client.send(head[i : i + 16_384])
                await asyncio.sleep(0.002)
            status, _, body = await client.response()
            assert (status, json.loads(body)["error"]["code"]) == (431, "request_too_large")
            await client.closed()


async def test_a_head_that_does_not_arrive_is_given_up(
    tmp_path: Path, connect: Connect, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{CONNECTION}._HEAD_DEADLINE_S", 0.05)
    monkeypatch.setattr("foretell.services.scheduler.http.server._SWEEP_S", 0.01)
    async with running(tmp_path, [engine]) as scheduler:
        slow, silent = await connect(scheduler), await connect(scheduler)
        slow.send(b"GET /hea")
        assert await silent.closed() == b""
        assert (await slow.head())[0] == 408
        await slow.closed()


async def test_an_idle_connection_is_closed(
    tmp_path: Path, connect: Connect, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foretell.services.scheduler.http.server._SWEEP_S", 0.01)
    async with running(tmp_path, [engine]) as scheduler:
        monkeypatch.setattr(f"{CONNECTION}._IDLE_S", 0.1)
        client = await connect(scheduler)
        client.send(HEALTH)
        assert (await client.response())[0] == 200
        assert await client.closed() == b""


async def test_an_answer_may_take_longer_than_any_wait_for_the_client(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foretell.services.scheduler.http.server._SWEEP_S", 0.01)
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
    monkeypatch.setattr("foretell.services.scheduler.http.server._SWEEP_S", 0.01)
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


async def test_answers_that_are_not_read_hold_up_the_requests_behind_them(
    tmp_path: Path, connect: Connect, engine: Engine
) -> None:
    """What is read later is all there, also where the client has closed its side."""
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
    """A request on an idle connection, and a connection that waits to be accepted."""
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
        stop.set()  # nothing of the server has run since `late` was connected
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
