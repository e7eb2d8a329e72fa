"""Clients that hold resources of others: memory, time, places and descriptors."""

import contextlib
import json
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from rows_bodies import CODED, with_headers
from rows_engines import CHUNKED, EVENT, OK, STREAM, chunk
from rows_engines import CODED as ENGINE_CODED
from rows_heads import GET
from rows_json import completion
from vectors import Script, Vector
from world import BOUND_S, START_S, World, exchanged, scheduler

_MIB = 1 << 20
_LONG_BYTES = 48 * _MIB
_UPGRADE = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"


def _flood(sock: socket.socket, data: bytes, seconds: float) -> None:
    """Send `data` repeatedly for `seconds`, without reading anything."""
    until_s = time.monotonic() + seconds
    sock.settimeout(0.2)
    with contextlib.suppress(ConnectionError):
        while time.monotonic() < until_s:
            with contextlib.suppress(TimeoutError):
                sock.sendall(data)


def _at_once(world: World, number: int, data: bytes, seconds: float) -> None:
    """Flood on `number` connections at once."""
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(world.connect()) for _ in range(number)]
        floods = [threading.Thread(target=_flood, args=(each, data, seconds)) for each in socks]
        for each in floods:
            each.start()
        for each in floods:
            each.join()


def pages_unread(world: World) -> None:
    _at_once(world, 40, b"GET /console/requests.js HTTP/1.1\r\nhost: x\r\n\r\n" * 1200, 4.0)


def ahead(world: World) -> None:
    """A request whose answer is held, and a flood of requests behind it."""
    world.engine.hold.clear()
    try:
        body = b'{"model":"test-model","prompt":"x"}'
        first = with_headers(b"content-length: %d" % len(body)) + body
        with world.connect() as sock:
            sock.sendall(first)
            _flood(sock, GET * 1000, 1.0)
    finally:
        world.engine.hold.set()


def small_chunks(world: World) -> None:
    """A flood of the smallest chunks that are allowed."""
    _at_once(world, 4, CODED + b"10\r\n0123456789abcdef\r\n" * 10_000, 2.0)


def upgrades(world: World) -> None:
    with world.connect() as sock:
        statuses, end = exchanged(sock, (_UPGRADE * 600,), 600, bound_s=START_S)
    assert (statuses, end) == ((200,) * 600, "kept")


def upgrade_and_close(world: World) -> None:
    """The request with `close` is the last one that is answered."""
    last = _UPGRADE.replace(b"upgrade\r\n", b"upgrade, close\r\n", 1)
    with world.connect() as sock:
        assert exchanged(sock, (_UPGRADE * 3 + last + GET,), 0) == ((200,) * 4, "closed")


def idle(world: World) -> None:
    with contextlib.ExitStack() as stack:
        for begun in (b"", GET[:10], CODED, with_headers(b"content-length: 9")) * 50:
            stack.enter_context(world.connect()).sendall(begun)
        time.sleep(0.5)


def body_for_nobody(world: World) -> None:
    """An endless body for an unknown path, which is read and discarded."""
    head = b"POST /nowhere HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (1 << 40)
    with world.connect() as sock:
        sock.sendall(head)
        _flood(sock, bytes(_MIB), 2.0)


def malformed_bodies(world: World) -> None:
    """Malformed bodies whose clients keep the connections open; each must be refused in time."""
    key = b"authorization: Bearer key-a\r\n"
    with contextlib.ExitStack() as stack:
        for wrong in (b"ZZ\r\n", b"1\n", b"1\r\nab", b"0\r\nno trailer\r\n", b"-1\r\n") * 12:
            sock = stack.enter_context(world.connect())
            sent = CODED.replace(b"\r\n", b"\r\n" + key, 1) + wrong
            began_s = time.monotonic()
            sock.sendall(sent)
            assert sock.recv(100).startswith(b"HTTP/1.1 400")
            assert time.monotonic() - began_s < BOUND_S
        assert world.generate(authorization="Bearer key-a")[0] == 200
        assert world.generate(authorization="Bearer key-b")[0] == 200


def all_places(world: World) -> None:
    """One caller asks for more than all places, and another caller still gets one."""
    world.engine.hold.clear()
    found: list[int] = []

    def ask() -> None:
        found.append(world.generate(authorization="Bearer key-a")[0])

    asking = [threading.Thread(target=ask) for _ in range(60)]
    try:
        for each in asking:
            each.start()
        until_s = time.monotonic() + START_S
        while len(found) < 20:
            assert time.monotonic() < until_s
            time.sleep(0.02)
        assert set(found) == {429}
        threading.Timer(0.3, world.engine.hold.set).start()
        assert world.generate(authorization="Bearer key-b")[0] == 200
    finally:
        world.engine.hold.set()
        for each in asking:
            each.join()
    assert found.count(200) == 40


def asked(world: World, *, stream: bool) -> socket.socket:
    """A connection on which a completion has been requested."""
    body = json.dumps({"model": "test-model", "prompt": "x", "stream": stream}).encode()
    sock = world.connect(START_S)
    sock.sendall(with_headers(b"connection: close", b"content-length: %d" % len(body)) + body)
    return sock


def read_all(sock: socket.socket) -> int:
    """Read to the end and discard; return the number of bytes."""
    read = 0
    with contextlib.suppress(ConnectionError):
        while data := sock.recv(_MIB):
            read += len(data)
    return read


@contextlib.contextmanager
def answering(world: World, *parts: bytes) -> Iterator[None]:
    """The engine answers with `parts` and closes its connection."""
    world.engine.script, world.engine.then_closes = parts, True
    try:
        yield
    finally:
        world.engine.script, world.engine.then_closes = None, False


def long_answer(world: World) -> None:
    """An unstreamed answer of 300 MiB reaches its client."""
    size = 300 * _MIB
    head = OK + b'content-length: %d\r\n\r\n{"a":"' % (size + 8)
    with (
        answering(world, head, *[b"x" * _MIB] * 300, b'"}'),
        asked(world, stream=False) as sock,
    ):
        assert read_all(sock) > size


def long_answer_unread(world: World) -> None:
    head = OK + b'content-length: %d\r\n\r\n{"a":"' % (300 * _MIB)
    with answering(world, head, *[b"x" * _MIB] * 300), asked(world, stream=False):
        time.sleep(1.5)


def long_line(world: World) -> None:
    """A stream whose first line is 64 MiB long and does not end."""
    with (
        answering(world, STREAM, *[chunk(b"data: " + b"x" * _MIB)] * 64),
        asked(world, stream=True) as sock,
    ):
        read_all(sock)


def bytes_of_an_event(world: World) -> None:
    """An event of 3 MiB that goes on in single bytes: a read must parse only its new bytes."""
    large = chunk(b'data: {"choices":[{"index":0,"text":"' + b"x" * 3 * _MIB)
    single = [chunk(b"x")] * 3000
    with (
        answering(world, STREAM + chunk(EVENT), large, *single),
        asked(world, stream=True) as sock,
    ):
        read_all(sock)


def bytes_of_an_answer(world: World) -> None:
    whole = [bytes([each]) for each in CHUNKED[:-5]]
    with (
        answering(world, *whole, *[chunk(b" ")] * 3000, b"0\r\n\r\n"),
        asked(world, stream=False) as sock,
    ):
        assert read_all(sock) > 3000


def endless_trailers_of_many(world: World) -> None:
    parts = (ENGINE_CODED, b"0\r\n", *[b"a: " + b"b" * 1000 + b"\r\n"] * 20_000)
    with answering(world, *parts), asked(world, stream=False) as sock:
        assert read_all(sock) < 10_000


def half_closed_for_long(world: World) -> None:
    """A client that has closed its sending side and still reads gets its answer, however late."""
    world.engine.hold.clear()
    threading.Timer(1.5, world.engine.hold.set).start()
    try:
        with asked(world, stream=False) as sock:
            sock.shutdown(socket.SHUT_WR)
            got = b""
            while data := sock.recv(1 << 16):
                got += data
        assert b"HTTP/1.1 200" in got
    finally:
        world.engine.hold.set()


def large_bodies(world: World, kind: str) -> None:
    """A body of about 40 MiB reaches the engine, and other clients do not wait for it."""
    picture = {"url": "data:image/png;base64," + "QUJD" * (10 * _MIB)}
    content: object = {
        "picture": [{"type": "image_url", "image_url": picture}],
        "text": "six words and a new line\n" * (40 * _MIB // 26),
        "quotes": '"\\' * (10 * _MIB),
    }[kind]
    messages = [{"role": "user", "content": content}]
    body = json.dumps({"model": "test-model", "messages": messages}).encode()
    parts = (body[at : at + 70_000] for at in range(0, len(body), 70_000))
    for each in (body, body, parts):  # the last one in chunks
        assert world.ask("POST", "/v1/chat/completions", each)[0] == 200


def _begun(stack: contextlib.ExitStack, world: World, key: str, sent_bytes: int) -> bytes:
    """Send the first `sent_bytes` of a body of 48 MiB; return what is answered so far."""
    sock = stack.enter_context(world.connect(START_S))
    length = b"content-length: %d" % _LONG_BYTES
    head = with_headers(b"authorization: Bearer " + key.encode(), length)
    with contextlib.suppress(ConnectionError):  # refused before all was sent
        sock.sendall(head + bytes(sent_bytes))
    sock.settimeout(0.1)
    with contextlib.suppress(TimeoutError):
        return sock.recv(1 << 16)
    return b""


def _long_one(world: World, key: str) -> int:
    body = completion(prompt=b'"%b"' % (b"a b " * _MIB))
    return world.ask("POST", "/v1/completions", body, authorization=f"Bearer {key}")[0]


def declared_bodies(world: World) -> None:
    """One caller declares long bodies without sending them: they take no room."""
    with contextlib.ExitStack() as stack:
        assert not any(_begun(stack, world, "key-a", 0) for _ in range(30))
        assert _long_one(world, "key-a") == 200


def unfinished_bodies(world: World) -> None:
    """One caller sends nearly all of as many long bodies as it may: another caller has room for a
    body, a short body is always accepted, and in the end all room is free again."""
    with contextlib.ExitStack() as stack:
        answers = [_begun(stack, world, "key-a", _LONG_BYTES - 1) for _ in range(14)]
        assert answers[:12] == [b""] * 12
        for each in answers[12:]:
            assert each.startswith(b"HTTP/1.1 503")
            assert b"retry-after: " in each
            assert b'"code":"too_many_body_bytes"' in each
        assert world.generate(authorization="Bearer key-a")[0] == 200
        assert _long_one(world, "key-b") == 200
    until_s = time.monotonic() + START_S
    with contextlib.ExitStack() as stack:  # all room is free again
        while _begun(stack, world, "key-a", _LONG_BYTES - 1):
            assert time.monotonic() < until_s


def descriptors(world: World) -> None:
    """Clients take nearly all of 80 descriptors: existing connections go on."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        limited = ("sh", "-c", 'ulimit -n 80; exec "$@"', "sh")
        small = stack.enter_context(scheduler(Path(name), world.engine, prefix=limited))
        first = stack.enter_context(small.connect())
        assert exchanged(first, (GET,), 1) == ((200,), "kept")
        for _ in range(150):
            with contextlib.suppress(OSError):
                stack.enter_context(small.connect())
        body = b'{"model":"test-model","prompt":"x"}'
        sent = with_headers(b"content-length: %d" % len(body)) + body
        assert exchanged(first, (GET, sent, GET), 3) == ((200,) * 3, "kept")
        assert "file descriptors run out" in (Path(name) / "log").read_text()


KEYS = "world_with_keys"
_ISSUE = "bug report on this project, November 2026"

VECTORS: list[Vector] = [
    Script("hold: pages that are not read", _ISSUE, pages_unread),
    Script("hold: 16 MiB ahead", "RFC 9112, section 9.3.2", ahead),
    Script("hold: small chunks", "CVE-2023-39326 (Go)", small_chunks),
    Script("hold: 600 upgrades", _ISSUE, upgrades),
    Script("hold: the last of several upgrades closes", _ISSUE, upgrade_and_close),
    Script("hold: 200 connections that do nothing more", "CVE-2007-6750 (Slowloris)", idle),
    Script("hold: a body for nobody", "RFC 9110, section 15.5.14", body_for_nobody),
    Script("hold: malformed bodies in all places", _ISSUE, malformed_bodies, world=KEYS),
    Script("hold: all places for one caller", _ISSUE, all_places, world=KEYS),
    Script("hold: long bodies that are declared alone", _ISSUE, declared_bodies, world=KEYS),
    Script("hold: long bodies without their ends", _ISSUE, unfinished_bodies, KEYS, most_mib=650),
    Script("hold: an answer of 300 MB", _ISSUE, long_answer),
    Script("hold: an answer of 300 MB that is not read", _ISSUE, long_answer_unread),
    Script("hold: a line without end", "HTML, section 9.2.5", long_line),
    Script("hold: single bytes of a long event", _ISSUE, bytes_of_an_event),
    Script("hold: single bytes of an answer", _ISSUE, bytes_of_an_answer),
    Script("hold: an engine's trailers without end", "CVE-2023-39326", endless_trailers_of_many),
    Script("hold: half-closed for long", "RFC 9112, section 9.6", half_closed_for_long),
    *(
        Script(
            f"hold: {kind} of 40 MB",
            _ISSUE,
            partial(large_bodies, kind=kind),
        )
        for kind in ("picture", "text", "quotes")
    ),
    Script("hold: descriptors", "accept(2), EMFILE", descriptors),
]
