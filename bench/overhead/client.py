"""An HTTP/1.1 client that does little more than read the clock.

It knows what the measured servers answer: a status, headers, and a body that is either counted
or chunked. Whatever else it meets is an error, so that nothing unexpected is timed.
"""

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

_DEADLINE_S = 30.0


class UnexpectedAnswerError(Exception):
    """The server did not answer as a benchmark needs it to."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds from the request's first byte sent; `first_byte_s` is that of the body."""

    first_byte_s: float
    total_s: float


class Connection:
    """One kept-alive connection; one request at a time. Close it when done."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def open(self) -> None:
        self.close()
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    async def post(self, path: str, body: bytes) -> tuple[Timing, bytes]:
        """POST JSON `body`; its timing and the answer's body. Raises `UnexpectedAnswerError`."""
        head = (
            f"POST {path} HTTP/1.1\r\nhost: {self._host}:{self._port}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return await self._ask(head.encode() + body)

    async def _ask(self, message: bytes) -> tuple[Timing, bytes]:
        if self._reader is None:
            await self.open()
        assert self._reader is not None
        assert self._writer is not None
        try:
            async with asyncio.timeout(_DEADLINE_S):
                started = time.perf_counter()
                self._writer.write(message)
                head = await self._reader.readuntil(b"\r\n\r\n")
                first, body = await _body(self._reader, head)
                ended = time.perf_counter()
        except (OSError, EOFError, TimeoutError) as error:
            self.close()
            raise UnexpectedAnswerError(f"no answer: {error!r}") from error
        if not head.startswith(b"HTTP/1.1 200 "):
            raise UnexpectedAnswerError(f"{head.splitlines()[0]!r}: {body[:300]!r}")
        return Timing(first - started, ended - started), body


async def _body(reader: asyncio.StreamReader, head: bytes) -> tuple[float, bytes]:
    """When the body's first byte had come, and the body."""
    headers = head.lower()
    if b"\r\ntransfer-encoding: chunked\r\n" in headers:
        return await _chunked(reader)
    _, found, rest = headers.partition(b"\r\ncontent-length: ")
    if not found:
        raise UnexpectedAnswerError(f"a body of unknown length: {head!r}")
    body = await reader.readexactly(int(rest.partition(b"\r\n")[0]))
    return time.perf_counter(), body


async def _chunked(reader: asyncio.StreamReader) -> tuple[float, bytes]:
    first = 0.0
    chunks: list[bytes] = []
    while True:
        size = int(await reader.readuntil(b"\r\n"), 16)
        chunk = await reader.readexactly(size + 2)
        first = first or time.perf_counter()
        if not size:
            return first, b"".join(chunks)
        chunks.append(chunk[:-2])


def completion_body(model: str, prompt: str, max_tokens: int, *, stream: bool) -> bytes:
    """A chat request for exactly `max_tokens` tokens."""
    request: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": stream,
    }
    return json.dumps(request).encode()
