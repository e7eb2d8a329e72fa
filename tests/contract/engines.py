"""Scripted engines: real sockets, the OpenAI surface, and every way to fail."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

MODEL = "test-model"

EVENTS = (
    b'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"test-model",'
    b'"choices":[{"index":0,"text":"caf\xc3\xa9","logprobs":null,"finish_reason":null}]}\n\n',
    b": a comment, which SSE allows\n\n",
    b'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"test-model",'
    b'"choices":[{"index":0,"text":" au lait","logprobs":null,"finish_reason":"length"}]}\n\n',
    b'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"test-model",'
    b'"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":20,"total_tokens":27}}\n\n',
    b"data: [DONE]\n\n",
)
STREAM = b"".join(EVENTS)
WHOLE = (
    b'{ "id": "cmpl-1",  "object": "text_completion", "created": 1, "model": "test-model",'
    b' "choices": [{"index": 0, "text": "caf\xc3\xa9", "logprobs": null, "finish_reason": "stop"}],'
    b' "usage": {"prompt_tokens": 7, "completion_tokens": 20, "total_tokens": 27} }'
)
REFUSAL = (
    b'{"error":{"message":"bad sampling","type":"BadRequestError","param":"top_p","code":400}}'
)


@dataclass
class Received:
    """A generation request as it arrived at an engine."""

    path: str
    headers: dict[str, str]
    raw: bytes
    method: str = "POST"
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the scheduler closed the connection before the answer was complete."""

    @property
    def body(self) -> dict[str, Any]:
        return json.loads(self.raw)


@dataclass
class Exchange:
    """One request and the means to answer it."""

    received: Received
    writer: asyncio.StreamWriter
    headers: dict[str, str]

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self, status: int, content_type: str, *, length: int | None = None) -> None:
        """Send the status line and the headers; without `length` the body is chunked."""
        lines = [f"HTTP/1.1 {status} X", f"content-type: {content_type}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        lines.append(
            "transfer-encoding: chunked" if length is None else f"content-length: {length}"
        )
        await self.write("\r\n".join([*lines, "", ""]).encode())

    async def chunk(self, data: bytes) -> None:
        """Send one HTTP chunk; an empty one ends the body."""
        await self.write(b"%x\r\n%s\r\n" % (len(data), data))

    async def whole(self, status: int, body: bytes) -> None:
        await self.head(status, "application/json", length=len(body))
        await self.write(body)

    async def hang_up(self) -> None:
        """Close the connection after everything written has been sent."""
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


Behaviour = Callable[[Exchange], Awaitable[None]]


async def answer(exchange: Exchange) -> None:
    """Answer as a healthy engine does."""
    if not exchange.received.body.get("stream"):
        await exchange.whole(200, WHOLE)
        return
    await exchange.head(200, "text/event-stream; charset=utf-8")
    for event in EVENTS:
        await exchange.chunk(event)
    await exchange.chunk(b"")


async def hang(exchange: Exchange) -> None:
    await asyncio.Event().wait()


async def close_before_headers(exchange: Exchange) -> None:
    await exchange.hang_up()


async def close_after_headers(exchange: Exchange) -> None:
    await exchange.head(200, "text/event-stream", length=None)
    await exchange.hang_up()


async def hang_after_headers(exchange: Exchange) -> None:
    await exchange.head(200, "text/event-stream")
    await hang(exchange)


async def hang_after_first_event(exchange: Exchange) -> None:
    if exchange.received.body.get("stream"):
        await exchange.head(200, "text/event-stream")
        await exchange.chunk(EVENTS[0])
    await hang(exchange)


async def end_without_a_byte(exchange: Exchange) -> None:
    await exchange.head(200, "text/event-stream")
    await exchange.chunk(b"")


async def garbage(exchange: Exchange) -> None:
    await exchange.write(b"\x15\x03\x01\x00\x02\x02\x46 this is no HTTP\r\n\r\n")
    await exchange.hang_up()


async def break_within_the_first_event(exchange: Exchange) -> None:
    await exchange.head(200, "text/event-stream")
    await exchange.chunk(EVENTS[0][:40])
    await exchange.hang_up()


async def break_within_the_body(exchange: Exchange) -> None:
    """Break off after half of an unstreamed answer, or within the first event of a stream."""
    if exchange.received.body.get("stream"):
        await break_within_the_first_event(exchange)
        return
    await exchange.head(200, "application/json", length=len(WHOLE))
    await exchange.write(WHOLE[: len(WHOLE) // 2])
    await exchange.hang_up()


async def error_event(exchange: Exchange) -> None:
    """Answer as vLLM does when its engine core has died behind the HTTP server."""
    await exchange.head(200, "text/event-stream")
    for byte in (b"dat", b'a: {"err', b'or":{"message":"EngineDeadError","code":500}}\n\n'):
        await exchange.chunk(byte)
    await exchange.chunk(b"data: [DONE]\n\n")
    await exchange.chunk(b"")


def status(code: int, body: bytes = b'{"error":{"message":"no"}}') -> Behaviour:
    async def behaviour(exchange: Exchange) -> None:
        await exchange.whole(code, body)

    return behaviour


def break_after(*chunks: bytes) -> Behaviour:
    """Stream `chunks`, then close the connection."""

    async def behaviour(exchange: Exchange) -> None:
        await exchange.head(200, "text/event-stream")
        for chunk in chunks:
            await exchange.chunk(chunk)
        # The HTTP client loses bytes that arrive together with the break, and an engine cannot know
        # when its last chunk was read.
        await asyncio.sleep(0.3)
        await exchange.hang_up()

    return behaviour


def gated(gate: asyncio.Event, *, first: int = 1) -> Behaviour:
    """A good answer: its `first` events come at once, and the rest when `gate` is set."""

    async def behaviour(exchange: Exchange) -> None:
        if not exchange.received.body.get("stream"):
            await gate.wait()
            await exchange.whole(200, WHOLE)
            return
        await exchange.head(200, "text/event-stream")
        for event in EVENTS[:first]:
            await exchange.chunk(event)
        await gate.wait()
        for event in EVENTS[first:]:
            await exchange.chunk(event)
        await exchange.chunk(b"")

    return behaviour


class Engine:
    """One scripted engine. Tests may change its fields at any time."""

    def __init__(self, instance_id: str, behaviour: Behaviour = answer) -> None:
        self.instance_id = instance_id
        self.behaviour = behaviour
        self.health_status: int | None = 200
        """The status of /health; None: it never answers."""
        self.models: object = {"object": "list", "data": [{"id": MODEL, "owned_by": "vllm"}]}
        self.metrics = ""
        self.states: dict[str, bool] = {}
        """Whether the engine is asleep or paused, by path; `behaviour` answers a wake-up."""
        self.headers: dict[str, str] = {}
        self.received: list[Received] = []
        self.probes = 0
        self.host = "127.0.0.1"
        self.port = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def config(self, predictor: str = "") -> dict[str, str]:
        return {"instance_id": self.instance_id, "url": self.url, "predictor": predictor}

    async def start(self) -> None:
        """Listen; after a `stop`, on the same port again."""
        self._server = await asyncio.start_server(self._connected, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Refuse new connections and drop the open ones."""
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while await self._serve_one(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError):
            return  # the scheduler closed the connection
        except asyncio.CancelledError:
            return  # cancelled by stop(); the asyncio server need not see it
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = lines[0].split(" ")
        headers = {k.lower(): v.strip() for k, _, v in (x.partition(":") for x in lines[1:]) if k}
        if headers.get("transfer-encoding") == "chunked":
            raw = await _chunked(reader)
        else:
            raw = await reader.readexactly(int(headers.get("content-length", 0)))
        exchange = Exchange(Received(path, headers, raw, method), writer, self.headers)
        work = asyncio.create_task(self._respond(method, exchange))
        closed = asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait({work, closed}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() or isinstance(work.exception(), OSError):  # the connection is closed
                exchange.received.gone.set()
        finally:
            work.cancel()
            closed.cancel()
            await asyncio.wait({work, closed})
        if not work.cancelled():
            work.result()  # raise a bug of the script itself, which is no scripted fault
        return not exchange.received.gone.is_set() and not writer.is_closing()

    async def _respond(self, method: str, exchange: Exchange) -> None:
        if method == "POST" or exchange.received.path.startswith("/v1/responses/"):
            self.received.append(exchange.received)
            await self.behaviour(exchange)
        elif exchange.received.path == "/health":
            self.probes += 1
            if self.health_status is None:
                await hang(exchange)
            await exchange.whole(self.health_status or 0, b"")
        elif exchange.received.path == "/metrics":
            await exchange.whole(200, self.metrics.encode())
        elif (path := exchange.received.path.lstrip("/")) in ("is_sleeping", "is_paused"):
            known = path in self.states
            body = json.dumps({path: self.states[path]} if known else {}).encode()
            await exchange.whole(200 if known else 404, body)
        else:
            await exchange.whole(200, json.dumps(self.models).encode())


async def _chunked(reader: asyncio.StreamReader) -> bytes:
    parts = [b""]
    while size := int(await reader.readline(), 16):
        parts.append(await reader.readexactly(size))
        await reader.readline()
    await reader.readline()
    return b"".join(parts)


@asynccontextmanager
async def engines(*behaviours: Behaviour) -> AsyncIterator[list[Engine]]:
    """Listening engines named engine-0, engine-1, ..., one for each behaviour."""
    made = [Engine(f"engine-{i}", behaviour) for i, behaviour in enumerate(behaviours)]
    for engine in made:
        await engine.start()
    try:
        yield made
    finally:
        await asyncio.gather(*(engine.stop() for engine in made))
