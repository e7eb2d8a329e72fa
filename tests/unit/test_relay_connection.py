"""A connection to an engine: what it makes of the bytes that come, without a socket."""

import asyncio
from typing import Any

import pytest

from services.scheduler.relay.connection import Connection, ConnectionBroken

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nX-A: one\r\nx-a: two\r\n\r\nbody"
ENDLESS = b"HTTP/1.1 200 OK\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class Wire(asyncio.Transport):
    """Notes what is done to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.aborted = False
        self.paused = False

    def writelines(self, list_of_data: Any) -> None:
        self.written += b"".join(list_of_data)

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


def opened(read_timeout_s: float = 60.0) -> tuple[Connection, Wire]:
    connection, wire = Connection(read_timeout_s), Wire()
    connection.connection_made(wire)
    connection.send(b"head", b"body")
    assert wire.written == b"headbody"
    return connection, wire


async def whole(connection: Connection) -> bytes:
    parts = []
    while part := await connection.read():
        parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize("cut", range(0, len(OK) + 1, 7))
async def test_an_answer_cut_anywhere_is_read_and_the_connection_kept(cut: int) -> None:
    connection, wire = opened()
    for part in filter(None, (OK[:cut], OK[cut:])):
        connection.data_received(part)
    await connection.head()
    assert connection.status == 200
    assert connection.headers == {b"content-length": b"4", b"x-a": b"one"}
    assert await whole(connection) == b"body"
    assert connection.reusable
    connection.send(b"head", b"body")
    connection.data_received(b"HTTP/1.1 204 No Content\r\n\r\n")
    await connection.head()
    assert (connection.status, await whole(connection)) == (204, b"")
    assert connection.reusable
    assert not wire.aborted


async def test_an_interim_answer_is_passed_over() -> None:
    connection, _ = opened()
    connection.data_received(b"HTTP/1.1 100 Continue\r\n\r\n" + OK)
    await connection.head()
    assert (connection.status, await whole(connection)) == (200, b"body")


async def test_a_body_without_a_length_ends_with_its_connection() -> None:
    connection, _ = opened()
    connection.data_received(ENDLESS + b"bo")
    connection.data_received(b"dy")
    connection.connection_lost(None)
    assert await whole(connection) == b"body"
    assert not connection.reusable


@pytest.mark.parametrize("error", [None, ConnectionResetError()])
@pytest.mark.parametrize("begun", [OK[:-1], CHUNKED + b"3\r\nbod\r\n"])
async def test_a_lost_connection_breaks_the_answer_after_what_came(
    begun: bytes, error: Exception | None
) -> None:
    connection, _ = opened()
    connection.data_received(begun)
    connection.connection_lost(error)
    assert await connection.read() == b"bod"
    with pytest.raises(ConnectionBroken, match="connection_lost"):
        await connection.read()


@pytest.mark.parametrize(
    "nonsense", [b"no HTTP at all\r\n\r\n", b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000]
)
async def test_nonsense_and_endless_heads_break_it(nonsense: bytes) -> None:
    connection, wire = opened()
    connection.data_received(nonsense)
    with pytest.raises(ConnectionBroken):
        await connection.head()
    assert wire.aborted


async def test_a_connection_that_the_engine_closes_is_not_kept() -> None:
    connection, wire = opened()
    connection.data_received(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 1\r\n\r\nx")
    assert await whole(connection) == b"x"
    assert not connection.reusable
    assert wire.aborted


async def test_bytes_that_nobody_asked_for_end_it() -> None:
    connection, wire = opened()
    connection.data_received(OK)
    await whole(connection)
    connection.data_received(b"more")
    assert wire.aborted
    assert not connection.reusable


async def test_silence_ends_it() -> None:
    connection, _ = opened(read_timeout_s=0.01)
    with pytest.raises(ConnectionBroken, match="timeout"):
        await connection.head()


async def test_what_is_not_read_stops_the_flow_and_its_silence_is_not_the_engines() -> None:
    connection, wire = opened(read_timeout_s=0.01)
    connection.data_received(CHUNKED + b"30000\r\n" + b"x" * 0x30000)
    assert wire.paused
    await asyncio.sleep(0.05)
    assert len(await connection.read()) == 0x30000
    assert not wire.paused
    with pytest.raises(ConnectionBroken, match="timeout"):
        await connection.read()


async def test_whoever_waits_is_told_why_it_was_lost() -> None:
    connection, _ = opened()
    waiting = asyncio.create_task(connection.head())
    await asyncio.sleep(0)
    connection.lose("engine_down")
    connection.lose("later")
    with pytest.raises(ConnectionBroken, match="engine_down"):
        await waiting
