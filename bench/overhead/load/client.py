"""Sends requests at random instants, whatever the answers take, and times the first bytes."""

import asyncio
import json
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, product
from random import Random

from bench.fake_engine import MODEL

_LONGEST_WAIT_S = 5.0  # for answers, once the last request was sent
_VOCABULARY = [
    "".join(word) for word in product("bcdfghlmnprstw", "aeiou", "dlmnrst", ("", "e", "ing", "ed"))
]
_MEDIAN_WORDS, _MOST_WORDS, _SIGMA = 60.0, 600, 1.0


@dataclass(slots=True)
class Answers:
    """What came of the requests of one run."""

    first_ms: list[float] = field(default_factory=list)
    """From the instant at which a request was due to the first bytes of its answer."""
    failures: Counter[str] = field(default_factory=Counter)
    """Requests without a whole answer of status 200, by what came instead."""
    took_s: float = 0.0

    @property
    def failed(self) -> int:
        """Requests without a whole answer of status 200."""
        return self.failures.total()


def bodies(rng: Random, stream_chunks: int) -> Iterator[bytes]:
    """Bodies of chats, each with another prompt, of log-normally many words."""
    while True:
        words = min(_MOST_WORDS, max(3, round(rng.lognormvariate(0.0, _SIGMA) * _MEDIAN_WORDS)))
        prompt = " ".join(rng.choices(_VOCABULARY, k=words))
        body = {
            "model": MODEL,
            # The fake engine takes this for its limit; placement must not see one: it would
            # believe that the answer is that short.
            "metadata": {"max_tokens": stream_chunks},
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0.7,
            "stream": True,
        }
        yield json.dumps(body).encode()


async def send(
    ports: list[int], rate_per_s: float, seconds: float, *, seed: int, prompts: str, chunks: int
) -> Answers:
    """Send to the schedulers on `ports` in turn for some seconds; answers are awaited.

    `seed` is for the instants, `prompts` for the texts: the tagger recalls those it has read.
    """
    loop, rng, found = asyncio.get_running_loop(), Random(seed), Answers()
    count = round(rate_per_s * seconds)
    requests = [_head(body) + body for body in islice(bodies(Random(prompts), chunks), count)]
    idle: dict[int, deque[_Connection]] = {port: deque() for port in ports}
    pending: set[asyncio.Task[None]] = set()
    began_s = due_s = loop.time()
    for number, request in enumerate(requests):
        due_s += rng.expovariate(rate_per_s)
        await asyncio.sleep(max(0.0, due_s - loop.time()))
        port = ports[number % len(ports)]
        task = loop.create_task(_one(port, idle[port], request, due_s, found))
        pending.add(task)
        task.add_done_callback(pending.discard)
    if pending:
        _, late = await asyncio.wait(pending, timeout=_LONGEST_WAIT_S)
        for task in late:
            task.cancel()
        if late:
            found.failures["no answer in time"] += len(late)
    found.took_s = loop.time() - began_s
    for connection in (each for waiting in idle.values() for each in waiting):
        connection.close()
    return found


async def _one(
    port: int, idle: "deque[_Connection]", request: bytes, due_s: float, found: Answers
) -> None:
    loop = asyncio.get_running_loop()
    connection = idle.pop() if idle else None
    if connection is None or connection.is_lost:
        try:
            made = partial(_Connection, loop)
            _, connection = await loop.create_connection(made, "127.0.0.1", port)
        except OSError as error:
            found.failures[f"no connection ({type(error).__name__})"] += 1
            return
    try:
        failure, first_s = await connection.ask(request)
    except asyncio.CancelledError:
        connection.close()
        raise
    if failure:
        found.failures[failure] += 1
        connection.close()
    else:
        found.first_ms.append(1e3 * (first_s - due_s))
        idle.append(connection)


def _head(body: bytes) -> bytes:
    return (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode()


class _Connection(asyncio.Protocol):
    """One request at a time; the answer is chunked, or an error."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._first_s = 0.0
        self._last = b""
        self._failure = ""
        self._answer: asyncio.Future[tuple[str, float]] | None = None
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def ask(self, request: bytes) -> "asyncio.Future[tuple[str, float]]":
        """What came instead of a stream that ends as it should, empty if that came, and when the
        first bytes came."""
        self._first_s, self._last = 0.0, b""
        self._answer = self._loop.create_future()
        self._transport.write(request)  # type: ignore[attr-defined]  # uvloop's is no subclass
        return self._answer

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        if not self._first_s:
            self._first_s = self._loop.time()
            good = data.startswith(b"HTTP/1.1 200")
            self._failure = "" if good else f"status {data[9:12].decode(errors='replace')}"
        self._last = (self._last + data)[-5:]
        if self._last == b"0\r\n\r\n" or self._failure:
            self._tell(self._failure)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        when = "in mid-answer" if self._first_s else "before an answer"
        self._tell(f"connection {'reset' if exc else 'closed'} {when}")

    def _tell(self, failure: str) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((failure, self._first_s))
