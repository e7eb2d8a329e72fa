"""Whatever bytes arrive, the scheduler answers as HTTP requires, and keeps serving.

`FUZZ_EXAMPLES` is the number of cases of each test.
"""

import asyncio
import http.client
import io
import json
import os
import resource
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from engines import STREAM, engines
from engines import answer as good
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schedulers import running

from foretell.answer.continuation import Progress
from foretell.answer.framing import Event, WholeFraming
from foretell.answer.stream import StreamFraming
from foretell.engine.published import SnapshotError
from foretell.latency.tables import NO_TABLES
from foretell.openai.surface import ENDPOINTS
from foretell.services.process import runtime
from foretell.v1 import predictor_pb2
from foretell.wire.published import MessageReader

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "25"))
DEADLINE_S = 30.0
"""Longer than the timeout of a request's head, so every answer must have come by then."""
MOST_GROWTH_BYTES = 256 << 20
fuzzed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

METHODS = ("POST", "GET", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE", "PROPFIND")
PATHS = (*ENDPOINTS, "/v1/models", "/v1/models/x", "/health", "/ready", "/metrics", "/status", "/")
HEADERS = (
    *(
        "accept",
        "authorization",
        "content-type",
        "cookie",
        "priority",
        "te",
        "upgrade",
        "x-api-key",
    ),
    *("x-request-id", "x-foretell-ttft-target-ms", "x-foretell-tpot-target-ms", "x-vllm-priority"),
    *("x-foretell-when-late", "x-forwarded-for", "traceparent", "if-none-match", "range"),
)
FIELDS = (
    *("model", "prompt", "messages", "input", "instructions", "system", "stream", "n", "best_of"),
    *("max_tokens", "max_completion_tokens", "max_output_tokens", "stop", "priority", "vllm_xargs"),
    *("stream_options", "tools", "temperature", "seed", "user", "ignore_eos", "min_tokens"),
)
TEXT = st.text(max_size=30)
NUMBERS = st.one_of(st.integers(), st.floats(), st.sampled_from((2**63, -1, 0, 1e308)))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXT),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(TEXT, st.just("role")), inner)
    ),
    max_leaves=12,
)
VALID: dict[str, Any] = {"model": "test-model", "prompt": "hello", "max_tokens": 4}
CHAT = VALID | {"messages": [{"role": "user", "content": "hello"}]}
BODIES = st.one_of(
    st.binary(max_size=200),
    JSON.map(lambda value: json.dumps(value).encode()),
    st.dictionaries(st.sampled_from(FIELDS), JSON).map(
        lambda changed: json.dumps(CHAT | changed).encode()
    ),
    st.sampled_from((b"[" * 100_000, b'{"a":' * 50_000, b'{"model":"\\ud800"}', b"\xff{}")),
)
TARGETS = st.one_of(
    st.sampled_from(PATHS),
    st.tuples(st.sampled_from(PATHS), st.binary(max_size=20)).map(
        lambda each: each[0] + "?" + "".join(f"%{byte:02x}" for byte in each[1])
    ),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=40).map("/".__add__),
)
VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=40).map(str.strip)


@dataclass(frozen=True, slots=True)
class Raw:
    """A complete request, whose sender waits for an answer."""

    method: str
    data: bytes


@st.composite
def requests(draw: st.DrawFn) -> Raw:
    method, target = draw(st.sampled_from(METHODS)), draw(TARGETS)
    fields = draw(st.lists(st.tuples(st.sampled_from(HEADERS), VALUES), max_size=5))
    head = [f"{method} {target} HTTP/1.1", "host: x", *(f"{n}: {v}" for n, v in fields)]
    body = draw(BODIES)
    if draw(st.booleans()):
        head.append(f"content-length: {len(body)}")
        framed = body
    else:
        head.append("transfer-encoding: chunked")
        size = draw(st.integers(1, max(1, len(body))))
        size = max(size, len(body) // 20)
        parts = [body[at : at + size] for at in range(0, len(body), size)]
        framed = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    return Raw(method, "\r\n".join([*head, "", ""]).encode("latin-1") + framed)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """The address of a scheduler with a healthy engine, in a separate thread."""
    folder: Path = tmp_path_factory.mktemp("scheduler")
    found: list[tuple[str, int]] = []
    up, over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with engines(good) as made, running(folder, made, max_body_bytes=1 << 20) as serving:
            found.append((serving.host, serving.port))
            up.set()
            await asyncio.to_thread(over.wait)
            await serving.until_idle()

    def work() -> None:
        try:
            with asyncio.Runner(loop_factory=runtime.loop_factory()) as runner:
                runner.run(serve())
        finally:
            up.set()

    thread = threading.Thread(target=work)
    thread.start()
    up.wait(2 * DEADLINE_S)
    yield found[0]
    over.set()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


class _Kept:
    """A socket from which several answers are read one after the other."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Raw(self._file))


class _Raw(io.RawIOBase):
    """Reads one byte at a time, so it never reads beyond the current answer."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read1(1)
        buffer[: len(data)] = data
        return len(data)


def answers(file: io.BufferedReader, asked: list[Raw]) -> list[tuple[int, bytes]]:
    """Statuses and bodies of the answers, up to the one after which the server closes."""
    found = []
    for raw in asked:
        response = http.client.HTTPResponse(_Kept(file), method=raw.method)  # type: ignore[arg-type]
        try:
            response.begin()
        except http.client.RemoteDisconnected:
            break
        found.append((response.status, response.read()))
        if response.will_close:
            break
    return found


@fuzzed
@given(st.lists(requests(), min_size=1, max_size=3), st.integers(1, 4))
def test_every_whole_request_is_answered(
    address: tuple[str, int], asked: list[Raw], pieces: int
) -> None:
    sent = b"".join(raw.data for raw in asked)
    size = max(1, len(sent) // pieces)
    with socket.create_connection(address, timeout=DEADLINE_S) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for at in range(0, len(sent), size):
                sock.sendall(sent[at : at + size])
        except (BrokenPipeError, ConnectionResetError):
            return  # the server closed the connection while this client was still sending
        with sock.makefile("rb") as file:
            try:
                found = answers(file, asked)
            except ConnectionResetError:
                return
    assert found, sent[:500]
    for status, body in found:
        assert status < 500 or status in (501, 502, 503), (status, body, sent[:2000])
        if status >= 400 and body:
            assert json.loads(body), body
    alive(address)


@fuzzed
@given(st.lists(st.one_of(st.binary(max_size=300), requests().map(lambda raw: raw.data[:-3]))))
def test_bytes_that_are_no_requests_stop_nobody(
    address: tuple[str, int], parts: list[bytes]
) -> None:
    with socket.create_connection(address, timeout=DEADLINE_S) as sock:
        try:
            for part in parts:
                sock.sendall(part)
        except (BrokenPipeError, ConnectionResetError):
            pass
    alive(address)


def alive(address: tuple[str, int]) -> None:
    """Check that the scheduler answers other clients."""
    client = http.client.HTTPConnection(*address, timeout=DEADLINE_S)
    client.request("GET", "/health")
    assert client.getresponse().status == 200
    client.close()


def test_memory_is_bounded(address: tuple[str, int]) -> None:
    """Endless heads and bodies on many connections at once."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    socks = [socket.create_connection(address, timeout=DEADLINE_S) for _ in range(40)]
    post = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
    endless = (
        (b"GET /" + b"a" * (1 << 16), b"a" * (1 << 16)),
        (post, b"a: b\r\n" * 10_000),
        (post + b"transfer-encoding: chunked\r\n\r\n", b"10000\r\n" + b"a" * 65536 + b"\r\n"),
        (post + b"content-length: 99999999999\r\n\r\n", b"a" * (1 << 16)),
    )
    for number, sock in enumerate(socks):
        head, more = endless[number % len(endless)]
        try:
            sock.sendall(head)
            for _ in range(200):
                sock.sendall(more)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the server is right to close it
    alive(address)
    for sock in socks:
        sock.close()
    grown_bytes = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert grown_bytes < MOST_GROWTH_BYTES


@fuzzed
@given(st.data())
def test_framings_take_any_bytes_in_any_pieces(data: st.DataObject) -> None:
    """They raise nothing, end once, and return only bytes that were received."""
    mutated = bytearray(STREAM)
    for _ in range(data.draw(st.integers(0, 8))):
        at = data.draw(st.integers(0, len(mutated) - 1))
        length = data.draw(st.integers(0, 12))
        mutated[at : at + length] = data.draw(st.binary(max_size=40))
    stream = data.draw(st.one_of(st.just(bytes(mutated)), st.binary(max_size=400)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    made: tuple[StreamFraming | WholeFraming, ...] = (
        StreamFraming(),
        WholeFraming(),
        StreamFraming(Progress(with_usage=True)),
    )
    for framing in made:
        events: list[Event] = []
        for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            if end > begin and not framing.ended:
                events += framing.feed(stream[begin:end])
        if not framing.ended:
            events += framing.feed_end()
        assert framing.ended
        assert events


@fuzzed
@given(st.binary(max_size=400))
def test_snapshots_of_any_bytes_are_refused(data: bytes) -> None:
    """Only the two errors that followers expect may be raised."""
    try:
        message = predictor_pb2.Published.FromString(data)
        MessageReader(lambda profile: (_ for _ in ()).throw(ValueError(profile)), NO_TABLES).read(
            message
        )
    except (DecodeError, SnapshotError):
        pass
