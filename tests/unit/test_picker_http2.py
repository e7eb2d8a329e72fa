"""The picker's side of HTTP/2, frame by frame."""

import asyncio
from typing import Any

import pytest
from hpack import Encoder

from foretell.services.scheduler.envoy import http2
from foretell.services.scheduler.envoy.calls import LONGEST_MESSAGE_BYTES, CallStream
from foretell.services.scheduler.envoy.frames import CREDIT
from foretell.services.scheduler.envoy.http2 import Http2Connection
from foretell.services.scheduler.turns import TURN_S, Turns

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def message(data: bytes) -> bytes:
    return b"\0" + len(data).to_bytes(4) + data


class Wire:
    """A transport that keeps what is written, split into frames."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False
        self.reading = True

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def frames(self) -> list[tuple[int, int, int, bytes]]:
        found = []
        while self.written:
            size = int.from_bytes(self.written[:3])
            kind, flags = self.written[3:5]
            stream = int.from_bytes(self.written[5:9])
            found.append((kind, flags, stream, self.written[9 : 9 + size]))
            self.written = self.written[9 + size :]
        return found

    def data(self) -> bytes:
        return b"".join(payload for kind, _, _, payload in self.frames() if kind == DATA)


class Recorded:
    """A call that keeps what it receives."""

    def __init__(self, stream: CallStream, headers: dict[str, str]) -> None:
        self.stream, self.headers = stream, headers
        self.said: list[Any] = []

    def receive(self, data: bytes) -> None:
        self.said.append(data)

    def half_close(self) -> None:
        self.said.append("half closed")

    def lose(self) -> None:
        self.said.append("lost")


class Peer:
    """A gateway that talks to one connection."""

    def __init__(self, most_streams: int = 4096, turns: Turns | None = None) -> None:
        self.calls: list[Recorded] = []
        self.connections: set[Http2Connection] = set()
        turns = turns or Turns(lambda: 0.0)
        self.connection = Http2Connection(self._open, turns, self.connections, most_streams)
        self.wire = Wire()
        self.connection.connection_made(self.wire)  # type: ignore[arg-type]
        self.encoder = Encoder()
        self.send(PREFACE + frame(SETTINGS, 0, 0))
        self.wire.frames()

    def _open(self, stream: CallStream, headers: dict[str, str]) -> Recorded:
        self.calls.append(Recorded(stream, headers))
        return self.calls[-1]

    def send(self, data: bytes) -> None:
        self.connection.data_received(data)

    def open(self, stream: int = 1, path: str = "/a") -> Recorded:
        head = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x")]
        block = self.encoder.encode([*head, ("te", "trailers")])
        self.send(frame(HEADERS, 4, stream, block))
        return self.calls[-1]


async def test_messages_come_whole_however_the_bytes_are_cut() -> None:
    sent = frame(DATA, 0, 1, message(b"one") + message(b"")[:3])
    sent += frame(DATA, 1, 1, message(b"")[3:] + message(b"three"))
    for cut in range(1, len(sent), 3):
        peer = Peer()
        call = peer.open()
        for at in range(0, len(sent), cut):
            peer.send(sent[at : at + cut])
        assert call.said == [b"one", b"", b"three", "half closed"]
        assert call.headers.items() >= {":path": "/a", "te": "trailers"}.items()


async def test_what_is_sent_keeps_within_the_windows() -> None:
    peer = Peer()
    initial = (4).to_bytes(2) + (100).to_bytes(4)
    peer.send(frame(SETTINGS, 0, 0, initial))
    call = peer.open()
    peer.wire.frames()
    call.stream.send(b"x" * 95, b"y" * 300)
    await asyncio.sleep(0)
    whole = message(b"x" * 95) + message(b"y" * 300)
    sent = peer.wire.data()
    assert sent == whole[:100]
    peer.send(frame(WINDOW, 0, 1, (50).to_bytes(4)))
    sent += peer.wire.data()
    assert sent == whole[:150]
    peer.send(frame(SETTINGS, 0, 0, (4).to_bytes(2) + (1000).to_bytes(4)))
    assert sent + peer.wire.data() == whole


async def test_a_long_message_is_cut_into_frames_that_any_peer_takes() -> None:
    peer = Peer()
    call = peer.open()
    call.stream.send(b"x" * 60_000)
    await asyncio.sleep(0)
    frames = [payload for kind, _, _, payload in peer.wire.frames() if kind == DATA]
    assert b"".join(frames) == message(b"x" * 60_000)
    assert max(map(len, frames)) <= 16384


async def test_what_is_sent_at_once_is_bounded_however_large_the_windows_are() -> None:
    peer = Peer()
    windows = frame(SETTINGS, 0, 0, (4).to_bytes(2) + (2**30).to_bytes(4))
    peer.send(windows + frame(WINDOW, 0, 0, (2**30).to_bytes(4)))
    call = peer.open()
    sent: list[int] = []
    call.stream.send(b"x" * (4 << 20))
    while sum(sent) < 4 << 20:
        await asyncio.sleep(0)
        sent.append(len(peer.wire.data()))
    assert max(sent) < 300_000


async def test_a_reset_and_a_lost_connection_are_told_once() -> None:
    peer = Peer()
    first, second = peer.open(1), peer.open(3)
    peer.send(frame(DATA, 0, 1, message(b"half")[:-1]))
    peer.send(frame(RST, 0, 1, (8).to_bytes(4)))
    peer.send(frame(DATA, 0, 1, message(b"late")))
    peer.connection.connection_lost(None)
    assert (first.said, second.said) == (["lost"], ["lost"])
    second.stream.send(b"nobody")
    second.stream.end()
    assert not peer.connections


async def test_an_ended_call_gets_its_status_and_nothing_after() -> None:
    peer = Peer()
    call = peer.open()
    call.stream.end(12, "no")
    call.stream.send(b"late")
    call.stream.end()
    await asyncio.sleep(0)
    (kind, flags, stream, _), reset = peer.wire.frames()
    assert (kind, flags & 5, stream) == (HEADERS, 5, 1)
    assert reset == (RST, 0, 1, bytes(4))  # the rest of the call is not wanted


@pytest.mark.parametrize("value", [b"\xff\xfe", b"\xed\xa0\x80", "\u00e4".encode()])
async def test_headers_need_not_be_utf_8(value: bytes) -> None:
    peer = Peer()
    head = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a"), (b":authority", b"x")]
    peer.send(frame(HEADERS, 4, 1, peer.encoder.encode([*head, (b"a", value)])))
    assert peer.calls[-1].headers["a"].encode("latin-1") == value


async def test_a_failure_of_ours_ends_its_peer_and_nobody_elses_turns() -> None:
    turns = Turns(lambda: 0.0)
    one, other = Peer(turns=turns), Peer(turns=turns)
    call, heard = one.open(), other.open()
    call.receive = lambda data: 1 / 0  # type: ignore[method-assign,assignment]
    turns._left_s = 0.0
    for peer in (one, other):
        peer.send(frame(DATA, 0, 1, message(b"x" * 40)))
    while not heard.said:  # noqa: ASYNC110 - turns are counted
        await asyncio.sleep(0)
    assert one.wire.closed
    assert not other.wire.closed


@pytest.mark.parametrize(
    "wrong",
    [
        frame(DATA, 0, 9, b""),
        frame(HEADERS, 0, 1, b"\x00") + frame(DATA, 0, 1),
        frame(CONTINUATION, 4, 1, b""),
        frame(HEADERS, 4 | 8, 1, b"\xff"),
        frame(5, 4, 1, b"\0\0\0\2"),
        frame(SETTINGS, 0, 0, (4).to_bytes(2) + (2**31).to_bytes(4)),
        (16385).to_bytes(3) + b"\0\0\0\0\0\1" + bytes(16385),
    ],
)
async def test_a_peer_that_breaks_the_protocol_is_told_and_left(wrong: bytes) -> None:
    peer = Peer()
    peer.send(wrong)
    assert peer.wire.frames()[-1][0] == GOAWAY
    assert peer.wire.closed


async def test_a_message_that_is_too_long_ends_its_call_alone() -> None:
    peer = Peer()
    call = peer.open()
    peer.send(frame(DATA, 0, 1, b"\0" + (LONGEST_MESSAGE_BYTES + 1).to_bytes(4)))
    assert call.stream.closed
    assert not peer.wire.closed
    peer.send(frame(PING, 0, 0, b"12345678"))
    assert (PING, 1, 0, b"12345678") in peer.wire.frames()


async def test_what_a_peer_does_not_read_stops_what_is_read_of_it() -> None:
    peer = Peer()
    peer.connection.pause_writing()
    peer.send(frame(PING, 0, 0, b"12345678") * 5000)
    await asyncio.sleep(0)
    assert peer.wire.written == b""
    assert not peer.wire.reading
    peer.connection.resume_writing()
    while not peer.wire.reading:  # noqa: ASYNC110 - turns are counted
        await asyncio.sleep(0)
    assert peer.wire.written.count(b"12345678") == 5000


class Clock:
    """Shows how many frames were read: the work for one takes 20 us."""

    def __init__(self) -> None:
        self.frames = 0

    def __call__(self) -> float:
        return self.frames * 20e-6


SMALL = {
    "single bytes": frame(DATA, 0, 1, b"x"),
    "empty": frame(DATA, 0, 1),
    "pings": frame(PING, 0, 0, b"12345678"),
    "settings": frame(SETTINGS, 0, 0),
    "windows": frame(WINDOW, 0, 1, (1).to_bytes(4)),
}
MESSAGES = {**SMALL, "messages": frame(DATA, 0, 1, message(b"") * 30)}


@pytest.mark.parametrize("kind", SMALL)
async def test_all_peers_together_get_a_bounded_part_of_each_turn(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    clock = Clock()
    turns = Turns(clock)
    peers = [Peer(turns=turns) for _ in range(40)]
    for peer in peers:
        peer.open()
        real = peer.connection._h2.receive_data

        def receive(data: bytes, real: Any = real) -> Any:
            clock.frames += len(data) // len(SMALL[kind])
            return real(data)

        monkeypatch.setattr(peer.connection._h2, "receive_data", receive)
    await asyncio.sleep(0)
    for peer in peers:
        peer.send(SMALL[kind] * 1000)
    counted: list[int] = []
    while any(not peer.wire.reading for peer in peers):
        before = clock.frames
        await asyncio.sleep(0)
        counted.append(clock.frames - before)
    assert sum(counted) > 39_000
    assert max(counted) * 20e-6 < 2 * TURN_S
    assert not any(peer.wire.closed for peer in peers)


@pytest.mark.parametrize("kind", MESSAGES)
async def test_a_peer_that_brings_nothing_is_left(kind: str) -> None:
    peer = Peer()
    peer.open()
    for _ in range(CREDIT // 500):
        peer.send(MESSAGES[kind] * 600)
        await asyncio.sleep(0)
    assert peer.wire.frames()[-1][3][4:8] == (11).to_bytes(4)  # ENHANCE_YOUR_CALM
    assert peer.wire.closed


async def test_a_peer_with_calls_of_content_may_go_on_for_ever() -> None:
    peer = Peer()
    for number in range(2 * CREDIT // 10):
        call = peer.open(2 * number + 1)
        peer.send(frame(DATA, 0, call.stream.id, message(b"x" * 300)))
        peer.send(frame(DATA, 0, call.stream.id, message(b"")) * 3)
        peer.send(frame(WINDOW, 0, 0, (1).to_bytes(4)) + frame(PING, 0, 0, b"12345678"))
        call.stream.send(b"answered")
        call.stream.end()
        peer.wire.written = b""
        await asyncio.sleep(0)
    assert not peer.wire.closed


async def test_calls_that_are_reset_again_and_again_end_the_connection() -> None:
    peer = Peer()
    for number in range(CREDIT):
        if peer.wire.closed:
            break
        peer.open(2 * number + 1)
        peer.send(frame(RST, 0, 2 * number + 1, (8).to_bytes(4)))
        await asyncio.sleep(0)
    assert peer.wire.closed
    assert 500 < len(peer.calls) < 1000
    assert all(call.said == ["lost"] for call in peer.calls[:-1])


async def test_calls_that_are_answered_may_be_reset_for_ever() -> None:
    peer = Peer()
    for number in range(2000):
        call = peer.open(4 * number + 1)
        call.stream.send(b"answered")
        call.stream.end()
        peer.open(4 * number + 3)
        peer.send(frame(RST, 0, 4 * number + 3, (8).to_bytes(4)))
        await asyncio.sleep(0)
    assert not peer.wire.closed


async def test_there_are_only_so_many_calls_at_a_time() -> None:
    peer = Peer(most_streams=5)
    for number in range(6):
        peer.open(2 * number + 1)
    assert len(peer.calls) == 5
    assert (RST, 0, 11, (7).to_bytes(4)) in peer.wire.frames()  # REFUSED_STREAM
    peer.calls[0].stream.end()
    peer.open(13)
    assert len(peer.calls) == 6


async def test_messages_that_are_never_whole_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "MOST_PARTIAL_BYTES", 2500)
    peer = Peer()
    calls = [peer.open(2 * number + 1) for number in range(4)]
    for call in calls:
        peer.send(frame(DATA, 0, call.stream.id, message(b"x" * 900)[:-1]))
        await asyncio.sleep(0)
    assert [call.stream.closed for call in calls] == [False, False, True, True]


async def test_a_peer_that_says_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "PREFACE_S", 0.01)
    connection, wire = Http2Connection(lambda *_: None, Turns(), set()), Wire()
    connection.connection_made(wire)  # type: ignore[arg-type]
    connection.data_received(PREFACE[:10])
    while not wire.closed:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.005)
