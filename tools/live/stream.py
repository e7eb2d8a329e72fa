"""An HTTP/1.1 client for streams of tokens that costs next to nothing per token.

Client, engine and predictor of a measurement may share few cores: whatever the client computes, it
takes from the engine, and its own delays would be counted as the engine's. So an answer is not
parsed: events are counted, and the clock is read at the first and at the last.
"""

import asyncio
import json
import re
import ssl
import time
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

_EVENT, _DONE, _END = b"data: ", b"data: [DONE]", b"0\r\n\r\n"
_TOKENS = re.compile(rb'"completion_tokens"\s*:\s*(\d+)')
_TAIL_BYTES = 2048  # of an answer, kept to find its usage in
_ERROR_BYTES = 2000  # of an answer that is none, shown to the user


class NoStream(Exception):
    """The engine did not answer with the stream of tokens that was asked for."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Moments of one answer, on the wall clock."""

    sent_unix_s: float
    first_unix_s: float
    """When the first event had come."""
    last_unix_s: float
    """When the last event had come."""
    output_tokens: int
    """The engine's own count."""


class _Connection(asyncio.Protocol):
    """One kept-alive connection; one request at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.closed = False
        self._done: asyncio.Future[None] | None = None
        self._reset()

    def _reset(self) -> None:
        self.head = self.tail = b""
        self.first_unix_s = self.last_unix_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    async def ask(self, message: bytes) -> float:
        """Send `message` and wait for the end of the answer; returns when it was sent."""
        assert self.transport is not None
        self._reset()
        self._done = asyncio.get_running_loop().create_future()
        sent = time.time()
        self.transport.write(message)
        await self._done
        return sent

    def data_received(self, data: bytes) -> None:
        now = time.time()
        if not self.first_unix_s:
            self.head += data
            if _EVENT not in self.head:
                if b"\r\n\r\n" in self.head and not self.head.startswith(b"HTTP/1.1 200 "):
                    self._finish()  # the transport is closed by whoever sees the status
                return
            self.first_unix_s = now
        self.tail = tail = self.tail[-_TAIL_BYTES:] + data
        if not self.last_unix_s and _DONE in tail:
            self.last_unix_s = now
        if self.last_unix_s and tail.endswith(_END):
            self._finish()

    def eof_received(self) -> None:
        self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._finish()

    def _finish(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)


class StreamClient:
    """Sends completion requests to one engine. Close it when done."""

    def __init__(self, url: str, *, api_key: str = "") -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not an HTTP address: {url}")
        self._host = parts.hostname
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._path = f"{parts.path.rstrip('/')}/v1/completions"
        self._key = f"authorization: Bearer {api_key}\r\n" if api_key else ""
        self._idle: list[_Connection] = []

    async def complete(self, body: dict[str, Any], deadline_s: float) -> Timing:
        """Stream the completion `body`; raises `NoStream`."""
        text = json.dumps(body, separators=(",", ":")).encode()
        head = (
            f"POST {self._path} HTTP/1.1\r\nhost: {self._host}:{self._port}\r\n{self._key}"
            f"content-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n"
        )
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(deadline_s):
                connection = await self._connection()
                sent = await connection.ask(head.encode() + text)
        except (OSError, TimeoutError) as error:
            if connection is not None:
                self._close(connection)
            raise NoStream(f"no answer within {deadline_s:g} s: {error!r}") from error
        found = _TOKENS.findall(connection.tail)
        if not connection.last_unix_s or not found:
            self._close(connection)
            shown = (connection.tail or connection.head)[:_ERROR_BYTES]
            raise NoStream(f"not a stream with usage: {shown.decode(errors='replace')}")
        self._idle.append(connection)
        return Timing(sent, connection.first_unix_s, connection.last_unix_s, int(found[-1]))

    async def open(self, connections: int) -> None:
        """Connect ahead, so that no measured request waits for it."""
        self._idle += [await self._connect() for _ in range(connections)]

    def close(self) -> None:
        while self._idle:
            self._close(self._idle.pop())

    async def _connection(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                return connection
        return await self._connect()

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            _Connection, self._host, self._port, ssl=self._tls
        )
        return connection

    def _close(self, connection: _Connection) -> None:
        if connection.transport is not None:
            connection.transport.close()
