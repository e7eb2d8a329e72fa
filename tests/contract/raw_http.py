"""A connection to a scheduler, written and read byte by byte."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from engines import (
    MODEL,
    Engine,
    answer,
    engines,
)
from schedulers import WAIT_S, Scheduler

CONNECTION = "foretell.services.http.connection"
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
        """The status, headers and body of the next response."""
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
        """All bytes that arrive until the server closes the connection."""
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
    """A function that opens connections, which are closed after the test."""
    async with AsyncExitStack() as opened:

        async def made(scheduler: Scheduler) -> Client:
            client = Client(*await asyncio.open_connection(scheduler.host, scheduler.port))
            opened.callback(client.writer.transport.abort)
            opened.callback(client.writer.close)
            return client

        yield made
