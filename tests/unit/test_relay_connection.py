"""A connection to an engine: how it reads the bytes that arrive, without a socket."""

import asyncio
import socket
from collections.abc import Mapping
from typing import Any

import pytest

from foretell.services.scheduler.relay.connection import EngineConnection
from foretell.services.scheduler.turns import Turns

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nX-A: one\r\nx-a: two\r\n\r\nbody"
ENDLESS = b"HTTP/1.1 200 OK\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class Wire(asyncio.Transport):
    """Records what is done to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.aborted = False
        self.paused = False

    def write(self, data: Any) -> None:
        self.written += data

    def writelines(self, list_of_data: Any) -> None:
        self.written += b"".join(list_of_data)

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class Heard:
    """Records what it receives."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Mapping[bytes, bytes] = {}
        self.parts: list[bytes] = []
        self.over = ""
        """Why the answer broke off; "end" if it is whole."""

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    def head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        assert not self.status
        self.status, self.headers = status, headers

    def data(self, data: bytes) -> None:
        assert self.status
        assert not self.over
        self.parts.append(data)

    def end(self) -> None:
        self._note("end")

    def broken(self, reason: str) -> None:
        self._note(reason)

    def _note(self, over: str) -> None:
        assert not self.over
        self.over = over


def opened(
    read_timeout_s: float = 60.0, turns: Turns | None = None
) -> tuple[EngineConnection, Wire, Heard]:
    connection, wire, heard = (
        EngineConnection(
            read_timeout_s, lambda _: None, lambda _: None, turns or Turns(lambda: 0.0)
        ),
        Wire(),
        Heard(),
    )
    connection.connection_made(wire)
    connection.send(b"head", b"body", heard)
    assert wire.written == b"headbody"
    return connection, wire, heard


async def until_over(heard: Heard) -> None:
    async with asyncio.timeout(20):
        while not heard.over:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("cut", range(0, len(OK) + 1, 7))
async def test_an_answer_cut_anywhere_is_read_and_the_connection_kept(cut: int) -> None:
    connection, wire, heard = opened()
    for part in filter(None, (OK[:cut], OK[cut:])):
        connection.data_received(part)
    assert heard.status == 200
    assert heard.headers == {b"content-length": b"4", b"x-a": b"one"}
    assert (heard.body, heard.over) == (b"body", "end")
    assert connection.reusable
    again = Heard()
    connection.send(b"head", b"body", again)
    connection.data_received(b"HTTP/1.1 204 No Content\r\n\r\n")
    assert (again.status, again.body, again.over) == (204, b"", "end")
    assert connection.reusable
    assert not wire.aborted


async def test_what_one_read_brings_is_handed_on_at_once_and_in_one_piece() -> None:
    connection, _, heard = opened()
    connection.data_received(CHUNKED + b"3\r\none\r\n3\r\ntwo\r\n")
    assert heard.parts == [b"onetwo"]
    connection.data_received(b"5\r\nthree\r\n0\r\n\r\n")
    assert (heard.parts, heard.over) == ([b"onetwo", b"three"], "end")


async def test_an_interim_answer_is_passed_over() -> None:
    connection, _, heard = opened()
    connection.data_received(b"HTTP/1.1 100 Continue\r\n\r\n" + OK)
    assert (heard.status, heard.body) == (200, b"body")


async def test_a_body_without_a_length_ends_with_its_connection() -> None:
    connection, _, heard = opened()
    connection.data_received(ENDLESS + b"bo")
    connection.data_received(b"dy")
    assert not heard.over
    connection.connection_lost(None)
    assert (heard.body, heard.over) == (b"body", "end")
    assert not connection.reusable


@pytest.mark.parametrize("error", [None, ConnectionResetError()])
@pytest.mark.parametrize("begun", [OK[:-1], CHUNKED + b"3\r\nbod\r\n"])
async def test_a_lost_connection_breaks_the_answer_after_what_came(
    begun: bytes, error: Exception | None
) -> None:
    connection, _, heard = opened()
    connection.data_received(begun)
    connection.connection_lost(error)
    assert (heard.body, heard.over) == (b"bod", "connection_lost")


@pytest.mark.parametrize(
    "nonsense",
    [
        b"no HTTP at all\r\n\r\n",
        b"no HTTP and no end",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        OK.replace(b"X-A: one", b"transfer-encoding: chunked"),
        b"HTTP/1.1 100 Continue\r\n\r\n" * 5_000,
    ],
)
async def test_nonsense_and_endless_heads_break_it(nonsense: bytes) -> None:
    connection, wire, heard = opened()
    connection.data_received(nonsense)
    assert (heard.status, heard.over) == (0, "connection_lost")
    assert wire.aborted


async def test_a_connection_that_the_engine_closes_is_not_kept() -> None:
    connection, wire, heard = opened()
    connection.data_received(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 1\r\n\r\nx")
    assert (heard.body, heard.over) == (b"x", "end")
    assert not connection.reusable
    assert wire.aborted


async def test_bytes_that_nobody_asked_for_end_it() -> None:
    connection, wire, _ = opened()
    connection.data_received(OK)
    connection.data_received(b"more")
    assert wire.aborted
    assert not connection.reusable


async def test_silence_ends_it_in_every_request() -> None:
    connection, _, heard = opened(read_timeout_s=0.02)
    connection.data_received(OK)
    assert heard.over == "end"
    await asyncio.sleep(0.03)  # between requests it may be silent
    assert connection.reusable
    again = Heard()
    connection.send(b"head", b"body", again)
    await until_over(again)
    assert again.over == "timeout"


async def test_the_silence_of_a_paused_connection_is_not_the_engines() -> None:
    connection, wire, heard = opened(read_timeout_s=0.01)
    connection.data_received(CHUNKED + b"1\r\nx\r\n")
    connection.pause()
    assert wire.paused
    await asyncio.sleep(0.05)
    assert not heard.over
    connection.resume()
    assert not wire.paused
    await until_over(heard)
    assert heard.over == "timeout"


async def test_who_wants_to_hear_no_more_is_told_nothing() -> None:
    connection, wire, heard = opened()
    connection.data_received(CHUNKED + b"1\r\nx\r\n")
    connection.pause()
    connection.release()
    assert not wire.paused
    connection.data_received(b"1\r\ny\r\n")
    connection.lose("given_up")
    assert (heard.body, heard.over) == (b"x", "")


async def test_the_first_reason_of_a_loss_is_told_and_its_owner_hears_of_it_once() -> None:
    lost: list[EngineConnection] = []
    connection, heard = EngineConnection(60.0, lambda _: None, lost.append, Turns()), Heard()
    connection.connection_made(Wire())
    connection.send(b"head", b"body", heard)
    connection.engine_down()
    connection.lose("later")
    assert heard.over == "engine_down"
    assert lost == [connection]


@pytest.mark.parametrize(
    "behind",
    [
        *(b"\r\n", b"\n", b"x", b"0\r\n\r\n"),
        b"HTTP/1.1 418 I'm a teapot\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nset-cookie: a=b\r\n",
    ],
)
@pytest.mark.parametrize(
    "answer",
    [
        OK,
        CHUNKED + b"4\r\nbody\r\n0\r\n\r\n",
        CHUNKED + b"4\r\nbody\r\n0\r\na: b\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n",
    ],
)
async def test_whatever_follows_an_answer_in_the_same_read_ends_the_connection(
    answer: bytes, behind: bytes
) -> None:
    for first in {0, len(answer) - 1, answer.index(b"\r\n\r\n") + 2}:
        connection, wire, heard = opened()
        for part in filter(None, (answer[:first], answer[first:] + behind)):
            connection.data_received(part)
        assert heard.over == "end"
        assert heard.status in (200, 204)
        assert not connection.reusable
        assert wire.aborted


@pytest.mark.parametrize(
    "answer", [CHUNKED + b"4\r\nbody\r\n0\r\n\r\n", CHUNKED + b"0\r\na: b\r\n\r\n"]
)
async def test_a_connection_is_kept_after_chunks(answer: bytes) -> None:
    for first in (0, len(CHUNKED), len(answer) - 5):
        connection, wire, heard = opened()
        for part in filter(None, (answer[:first], answer[first:])):
            connection.data_received(part)
        assert heard.over == "end"
        assert connection.reusable
        assert not wire.aborted


async def test_trailers_are_no_headers_and_neither_they_nor_extensions_are_endless() -> None:
    connection, _, heard = opened()
    connection.data_received(CHUNKED + b"1\r\nx\r\n0\r\nx-trailer: y\r\n\r\n")
    assert (heard.body, heard.over) == (b"x", "end")
    assert b"x-trailer" not in heard.headers
    for begin, more in ((b"0\r\n", b"a: b\r\n"), (b"0\r\na: ", b"b"), (b"1;", b"a"), (b"", b"0")):
        connection, wire, heard = opened()
        connection.data_received(CHUNKED + b"1\r\nx\r\n" + begin)
        for _ in range(2000):
            if not wire.aborted:
                connection.data_received(more * 200)
        assert wire.aborted
        assert heard.over == "connection_lost"


async def test_many_small_chunks_are_content() -> None:
    connection, _, heard = opened()
    connection.data_received(CHUNKED)
    for _ in range(100):
        connection.data_received(b"0001\r\nx\r\n" * 5000)
    assert (len(heard.body), heard.over) == (500_000, "")


async def test_a_connection_on_which_something_waits_is_not_silent() -> None:
    ours, theirs = socket.socketpair()

    class Real(Wire):
        def get_extra_info(self, name: str, default: Any = None) -> Any:
            return ours if name == "socket" else default

    with ours, theirs:
        connection = EngineConnection(60.0, lambda _: None, lambda _: None, Turns())
        connection.connection_made(Real())
        assert connection.is_silent
        theirs.sendall(b"x")
        assert not connection.is_silent


async def test_a_long_read_is_handed_on_in_turns_and_whole_before_the_end_of_its_connection() -> (
    None
):
    now_s = 0.0

    def clock() -> float:
        nonlocal now_s
        now_s += 1.0  # each slice takes all its time
        return now_s

    connection, wire, heard = opened(turns=Turns(clock))
    sent = bytes(1 << 18)
    connection.data_received(ENDLESS + sent)
    assert wire.paused
    assert 0 < len(heard.body) < len(sent)
    connection.pause()
    handed_on = len(heard.body)
    connection.connection_lost(None)
    await asyncio.sleep(0.01)
    assert (len(heard.body), heard.over) == (handed_on, "")
    connection.resume()
    await until_over(heard)
    assert (heard.body, heard.over) == (sent, "end")
