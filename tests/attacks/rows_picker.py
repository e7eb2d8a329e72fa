"""Peers of the picker, over HTTP/2: each sends as much as is accepted, and reads nothing."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial

import grpc
from hpack import Encoder
from vectors import Script, Vector
from world import START_S, World

from foretell.v1 import ext_proc_pb2 as pb

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _PRIORITY, _RST, _SETTINGS, _PING = 0, 1, 2, 3, 4, 6
_WINDOW, _CONTINUATION = 8, 9
_HEAD = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/envoy.service.ext_proc.v3.ExternalProcessor/Process"),
    (":authority", "x"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]
_PIECE = 60_000
_MANY = 40
_FOR_S = 0.6
_REQUESTS = 20
"""Requests of one other client, one after the other."""
_TIMES = 50
"""They may take this many times as long as without peers; a fair share beside 40 would be 41."""


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def _block(**changed: bytes) -> bytes:
    encoder = Encoder()
    encoder.header_table_size = 0
    return bytes(encoder.encode([*_HEAD, *((f"x-{k}", v) for k, v in changed.items())]))


def _message(data: bytes) -> bytes:
    return b"\0" + len(data).to_bytes(4) + data


_BEGUN = _PREFACE + _frame(_SETTINGS, 0, 0)
_OPENED = _BEGUN + _frame(_HEADERS, 4, 1, _block())
_STREAMS = [(n, _frame(_HEADERS, 4, n, _block())) for n in range(3, 20_003, 2)]
_LONG = _message(bytes(4 << 20))
FLOODS: dict[str, tuple[bytes, bytes, str]] = {
    "one byte a frame": (
        _OPENED + _frame(_DATA, 0, 1, b"\0\0\x3d\x09\0"),
        _frame(_DATA, 0, 1, b"x"),
        "CVE-2019-9511",
    ),
    "empty frames": (_OPENED, _frame(_DATA, 0, 1), "CVE-2019-9518"),
    "empty messages": (_OPENED, _frame(_DATA, 0, 1, _message(b"") * 1000), "CVE-2019-9518"),
    "pings": (_BEGUN, _frame(_PING, 0, 0, b"12345678"), "CVE-2019-9512"),
    "long pings": (_BEGUN, _frame(_PING, 0, 0, b"p" * 16_000), "CVE-2019-9512"),
    "settings": (
        _PREFACE,
        _frame(_SETTINGS, 0, 0, (4).to_bytes(2) + (65_535).to_bytes(4)),
        "CVE-2019-9515",
    ),
    "windows": (_OPENED, _frame(_WINDOW, 0, 1, (1).to_bytes(4)), "CVE-2019-9517"),
    "rapid resets": (
        _BEGUN,
        b"".join(head + _frame(_RST, 0, n, (8).to_bytes(4)) for n, head in _STREAMS),
        "CVE-2023-44487",
    ),
    "headers that are no text": (
        _BEGUN,
        _frame(_HEADERS, 5, 1, _block(a=b"\xff\xfe")),
        "RFC 9110, section 5.5",
    ),
    "streams": (_BEGUN, b"".join(head for _, head in _STREAMS), "CVE-2019-9514"),
    "calls that end at once": (
        _BEGUN,
        b"".join(_frame(_HEADERS, 5, n, _block()) for n, _ in _STREAMS),
        "CVE-2023-44487",
    ),
    "long messages in many streams": (
        _BEGUN,
        b"".join(
            head
            + b"".join(
                _frame(_DATA, 0, n, _LONG[at : at + 16_384]) for at in range(0, 1 << 19, 16_384)
            )
            for n, head in _STREAMS[:80]
        ),
        "CVE-2019-9517",
    ),
    "a header block without an end": (
        _BEGUN + _frame(_HEADERS, 0, 1, _block()),
        _frame(_CONTINUATION, 0, 1, b"\x40\x01a\x01b" * 1000),
        "CVE-2024-24549 and others of CONTINUATION",
    ),
    "a header that is repeated": (
        _BEGUN,
        b"".join(
            _frame(
                _HEADERS, 5, n, _block() + b"\x40\x01a\x7f\x81\x1e" + b"b" * 4000 + b"\xbe" * 9000
            )
            for n, _ in _STREAMS[:40]
        ),
        "CVE-2016-6581 (hpack)",
    ),
    "priorities": (_BEGUN, _frame(_PRIORITY, 0, 3, b"\0\0\0\1\0"), "CVE-2019-9513"),
    "padding": (_OPENED, _frame(_DATA, 8, 1, b"\xff" + bytes(255)), "RFC 9113, section 6.1"),
    "frames of no kind": (_BEGUN, _frame(200, 0, 0), "RFC 9113, section 4.1"),
    "a frame that is too long": (
        _PREFACE + b"\xff\xff\xff\0\0\0\0\0\1",
        b"x" * 16_384,
        "RFC 9113, section 4.2",
    ),
    "no HTTP/2": (b"GET / HTTP/1.1\r\n\r\n", b"x" * 1000, "RFC 9113, section 3.4"),
    "a preface that never ends": (_PREFACE[:20], b"", "CVE-2007-6750 (Slowloris)"),
}
"""The bytes sent first, the bytes sent repeatedly, and the source of the attack."""


def _flood(world: World, first: bytes, again: bytes, over: threading.Event) -> None:
    """Send `first`, then `again` repeatedly; reconnect whenever the connection is closed."""
    many = again * max(1, _PIECE // max(1, len(again)))
    while not over.is_set():
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(0.2)
            sock.connect(world.picker)
            sock.sendall(first)
            at = 0
            while not over.wait(0.0 if again else 0.1):
                with contextlib.suppress(TimeoutError):
                    at += sock.send(many[at : at + _PIECE])
                    at %= max(1, len(many))


def flood(world: World, first: bytes, again: bytes, peers: int) -> None:
    """Flood with `peers` at once; others are served soon, and in sequence at a fair rate."""
    alone_s = _served_in_s(world)
    over = threading.Event()
    made = (world, first, again, over)
    floods = [threading.Thread(target=_flood, args=made) for _ in range(peers)]
    for each in floods:
        each.start()
    try:
        began_s = time.monotonic()
        beside_s = _served_in_s(world)
        over.wait(began_s + _FOR_S - time.monotonic())
    finally:
        over.set()
        for each in floods:
            each.join()
    assert beside_s <= _TIMES * alone_s


def _served_in_s(world: World) -> float:
    began_s = time.monotonic()
    for _ in range(_REQUESTS):
        assert world.generate()[0] == 200
    return time.monotonic() - began_s


def long_body(world: World) -> None:
    """A body of 40 MiB, which its gateway gets back in parts, after a while without reading."""
    body = b'{"model":"test-model","prompt":"%b"}' % (b"QUJD" * (10 << 20))
    fields = {":method": "POST", ":path": "/v1/completions"}
    headers = pb.HeaderMap(
        headers=[pb.HeaderValue(key=name, raw_value=each.encode()) for name, each in fields.items()]
    )

    def said() -> Iterator[pb.ProcessingRequest]:
        yield pb.ProcessingRequest(request_headers=pb.HttpHeaders(headers=headers))
        for at in range(0, len(body), _PIECE):
            part = pb.HttpBody(body=body[at : at + _PIECE], end_of_stream=at + _PIECE >= len(body))
            yield pb.ProcessingRequest(request_body=part)
        over.wait(START_S)

    over = threading.Event()
    with grpc.insecure_channel(f"unix:{world.picker}") as channel:
        process = channel.stream_stream(
            dict(_HEAD)[":path"],
            pb.ProcessingRequest.SerializeToString,
            pb.ProcessingResponse.FromString,
        )
        answers = process(said())
        assert next(answers).HasField("request_headers")
        time.sleep(0.5)
        back_bytes, ends = 0, False
        while not ends:
            part = next(answers).request_body.response.body_mutation.streamed_response
            back_bytes, ends = back_bytes + len(part.body), part.end_of_stream
        over.set()
    assert back_bytes > len(body)


VECTORS: list[Vector] = [
    Script("picker: a body of 40 MB", "bug report on this project, November 2026", long_body),
    *(
        Script(
            f"picker: {name}, {peers} at once",
            source,
            partial(flood, first=first, again=again, peers=peers),
        )
        for name, (first, again, source) in FLOODS.items()
        for peers in (1, _MANY)
    ),
]
