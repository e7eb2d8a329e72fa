"""What one peer of the picker can do: it is closed or held up, and nobody else is.

Each row is bytes that a peer sends, for as long as the picker takes them, without reading.
"""

import asyncio
import resource
from contextlib import suppress
from pathlib import Path

import pytest
from engines import answer, engines
from hpack import Encoder
from schedulers import running

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST, SETTINGS, PING, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
LONGEST_S = 3.0
"""How long a peer keeps at it."""
MOST_BYTES = 40 << 20
"""What it sends at most."""
MOST_MORE_BYTES = 50 << 20


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


HEAD = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/envoy.service.ext_proc.v3.ExternalProcessor/Process"),
    (":authority", "x"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]


def block() -> bytes:
    encoder = Encoder()
    encoder.header_table_size = 0
    return bytes(encoder.encode(HEAD))


OPENED = PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, 4, 1, block())
STREAMS = range(3, 20_003, 2)
VECTORS: dict[str, tuple[bytes, bytes]] = {
    "one byte a frame": (OPENED + frame(DATA, 0, 1, b"\0\0\x3d\x09\0"), frame(DATA, 0, 1, b"x")),
    "empty frames": (OPENED, frame(DATA, 0, 1)),
    "pings": (PREFACE + frame(SETTINGS, 0, 0), frame(PING, 0, 0, b"12345678")),
    "long pings": (PREFACE + frame(SETTINGS, 0, 0), frame(PING, 0, 0, b"p" * 16_000)),
    "settings": (PREFACE, frame(SETTINGS, 0, 0, (4).to_bytes(2) + (65_535).to_bytes(4))),
    "windows": (OPENED, frame(WINDOW, 0, 1, (1).to_bytes(4))),
    "rapid resets": (
        PREFACE + frame(SETTINGS, 0, 0),
        b"".join(
            frame(HEADERS, 4, n, block()) + frame(RST, 0, n, (8).to_bytes(4)) for n in STREAMS
        ),
    ),
    "streams": (
        PREFACE + frame(SETTINGS, 0, 0),
        b"".join(frame(HEADERS, 4, n, block()) for n in STREAMS),
    ),
    "a header block without an end": (
        PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, 0, 1, block()),
        frame(CONTINUATION, 0, 1, b"\x40\x01a\x01b" * 1000),
    ),
    "a frame that is too long": (PREFACE + b"\xff\xff\xff\0\0\0\0\0\1", b"x" * 16_384),
    "no HTTP/2": (b"GET / HTTP/1.1\r\n\r\n", b"x" * 1000),
    "a preface that never ends": (PREFACE[:20], b""),
}


async def attack(path: str, first: bytes, again: bytes) -> None:
    """Send `first`, then `again` as often as it is taken; nothing is read."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(LONGEST_S):
            _, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(first)
                sent, many = 0, again * max(1, 60_000 // max(1, len(again)))
                while again and sent < MOST_BYTES and not writer.is_closing():
                    writer.write(many)
                    sent += len(many)
                    await writer.drain()
                await asyncio.sleep(LONGEST_S)
            finally:
                writer.transport.abort()


@pytest.mark.parametrize("vector", VECTORS)
async def test_one_peer_holds_up_nobody_else(tmp_path: Path, vector: str) -> None:
    address = f"{tmp_path}/p.sock"
    async with (
        engines(answer) as (engine,),
        running(tmp_path, [engine], picker=f"unix:{address}") as scheduler,
    ):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        attacking = asyncio.create_task(attack(address, *VECTORS[vector]))
        while not attacking.done():
            assert (await scheduler.complete()).status_code == 200
        await attacking
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        assert after - before < MOST_MORE_BYTES
        await scheduler.until_idle()
