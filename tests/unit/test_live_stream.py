"""The stream client with sockets that answer well and badly, in pieces of any size."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from foretell.tools.live.stream import NoStream, StreamClient

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENTS = (
    b'data: {"choices":[{"text":"a"}]}\n\n',
    b'data: {"choices":[{"text":"b"}]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n',
    b"data: [DONE]\n\n",
)
ANSWER = HEAD + b"".join(b"%x\r\n%s\r\n" % (len(e), e) for e in EVENTS) + b"0\r\n\r\n"
Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]
BODY = {"prompt": [1, 2, 3]}


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that answers each request; yields its address, and the requests' bodies."""
    bodies: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                bodies.append(await reader.readexactly(length))
                await answer(writer)
        except asyncio.IncompleteReadError:
            pass  # the client has closed the connection
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}", bodies


def in_pieces(data: bytes, size: int) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        for at in range(0, len(data), size):
            writer.write(data[at : at + size])
            await writer.drain()
            await asyncio.sleep(0)

    return answer


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
async def test_a_stream_is_timed_however_it_is_cut(size: int) -> None:
    async with serving(in_pieces(ANSWER, size)) as (url, bodies):
        async with StreamClient(url, api_key="secret") as client:
            for _ in range(2):  # the second one over the connection of the first
                sent_unix_s = time.time()
                timing = await client.complete(BODY, 10.0)
                assert timing.output_tokens == 2
                assert sent_unix_s <= timing.first_unix_s <= timing.last_unix_s
        assert [json.loads(body) for body in bodies] == [BODY, BODY]


async def test_the_first_event_is_timed_when_it_comes() -> None:
    gone_on = asyncio.Event()

    async def answer(writer: asyncio.StreamWriter) -> None:
        head = HEAD + b"%x\r\n%s\r\n" % (len(EVENTS[0]), EVENTS[0])
        writer.write(head)
        await writer.drain()
        await asyncio.sleep(0.05)
        gone_on.set()
        writer.write(ANSWER[len(head) :])

    async with serving(answer) as (url, _), StreamClient(url) as client:
        timing = await client.complete(BODY, 10.0)
        assert gone_on.is_set()
        assert timing.last_unix_s - timing.first_unix_s >= 0.04


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"HTTP/1.1 400 Bad\r\ncontent-length: 5\r\n\r\nwrong", "wrong"),
        (HEAD + b"5\r\nhello\r\n0\r\n\r\n", "hello"),
        (ANSWER.replace(b"completion_tokens", b"completion_number"), "usage"),
    ],
)
async def test_what_is_no_stream_is_told(data: bytes, says: str) -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        writer.close()

    async with serving(answer) as (url, _), StreamClient(url) as client:
        with pytest.raises(NoStream, match=says):
            await client.complete(BODY, 10.0)


async def test_silence_ends_at_the_deadline_and_no_server_at_once() -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        del writer

    async with serving(answer) as (url, _), StreamClient(url) as client:
        with pytest.raises(NoStream, match=r"within 0\.05 s"):
            await client.complete(BODY, 0.05)
    async with StreamClient("http://127.0.0.1:1") as client:
        with pytest.raises(NoStream, match="no answer"):
            await client.complete(BODY, 10.0)
    with pytest.raises(ValueError, match="not an HTTP address"):
        StreamClient("127.0.0.1:8000")
