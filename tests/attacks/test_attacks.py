"""Every vector against a real scheduler: it must be answered in time, and cost others little."""

import importlib
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from beside import compare
from rows_tls import encrypting
from vectors import Answer, Bytes, Script, Vector
from world import BOUND_S, FakeEngine, World, batch_service, exchanged, scheduler

ROWS: list[Vector] = [
    each
    for path in sorted(Path(__file__).parent.glob("rows_*.py"))
    for each in importlib.import_module(path.stem).VECTORS
]
LEAST = 250


@pytest.fixture(scope="session")
def engine() -> Iterator[FakeEngine]:
    made = FakeEngine()
    yield made
    made.close()


@pytest.fixture(scope="session")
def world(engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with scheduler(tmp_path_factory.mktemp("open"), engine) as made:
        yield made


@pytest.fixture(scope="session")
def world_with_keys(
    engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("keys")
    (folder / "keys").write_text("key-a\nkey-b\n")
    flags = ("--api-keys-file", str(folder / "keys"), "--max-concurrent-requests", "50")
    with scheduler(folder, engine, *flags) as made:
        yield made


@pytest.fixture(scope="session")
def world_with_tls(engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("tls")
    with scheduler(folder, engine, *encrypting(folder)) as made:
        yield made


@pytest.fixture(scope="session")
def batches(engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with batch_service(tmp_path_factory.mktemp("batches"), engine) as made:
        yield made


def test_there_are_many_and_each_has_a_name_of_its_own_and_a_source() -> None:
    names = [each.name for each in ROWS]
    assert len(names) >= LEAST
    assert sorted(set(names)) == sorted(names)
    assert all(each.source for each in ROWS)


def rows(kind: type) -> list[Any]:
    return [pytest.param(each, id=each.name) for each in ROWS if isinstance(each, kind)]


@pytest.mark.parametrize("row", rows(Bytes))
def test_a_client(world: World, row: Bytes) -> None:
    with world.bounded(row.name), world.connect() as sock:
        found = exchanged(
            sock, row.sent, len(row.statuses) if row.kept else 0, half_closed=row.half_closed
        )
        assert found == (row.statuses, "kept" if row.kept else "closed")


@pytest.mark.parametrize("row", rows(Answer))
def test_an_engine(world: World, row: Answer) -> None:
    engine = world.engine
    with world.bounded(row.name):
        world.generate()  # leaves an idle connection that can be reused
        engine.script, engine.then_closes = row.sent, row.then_closes
        try:
            with world.connect(BOUND_S) as sock:
                status, told, body = _answer(sock, stream=row.stream)
        finally:
            engine.script, engine.then_closes = None, False
        used = engine.requests[-1]
        if len(row.sent) > 1:
            time.sleep(0.1)  # lets the later parts arrive
        status_after, told_after, body_after = world.generate()
    assert status in row.statuses
    assert row.body is None or body == row.body
    assert (status_after, b'"text":"ok"' in body_after) == (200, True)
    assert row.reused is None or (engine.requests[-1] == used) == row.reused
    for never in row.never:
        assert never not in told + body
        assert never.decode() not in f"{told_after} {body_after!r}"


def _answer(sock: socket.socket, *, stream: bool) -> tuple[int, bytes, bytes]:
    """A completion's status, its head, and its body as far as it came."""
    content = b'{"model":"test-model","prompt":"x","stream":%s}' % (b"true" if stream else b"false")
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    sock.sendall(head + b"content-length: %d\r\n\r\n%b" % (len(content), content))
    got = b""
    while data := sock.recv(1 << 16):
        got += data
    told, _, body = got.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in told:
        body = _joined(body)
    return int(told.split()[1]) if told else 0, told, body


def _joined(chunks: bytes) -> bytes:
    body = b""
    while chunks:
        size, _, rest = chunks.partition(b"\r\n")
        body += rest[: int(size, 16)]
        chunks = rest[int(size, 16) + 2 :]
    return body


@pytest.mark.parametrize("row", rows(Script))
def test_a_script(request: pytest.FixtureRequest, row: Script) -> None:
    world: World = request.getfixturevalue(row.world)
    with world.bounded(row.name, row.most_mib):
        row.run(world)


def test_beside_uvicorn(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    text = compare(ROWS, world.port)
    with capsys.disabled():
        sys.stdout.write(f"\n{text}\n")
