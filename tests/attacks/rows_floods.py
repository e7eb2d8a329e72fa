"""Engines that send as much as is accepted, and data that is slower to read than to write."""

import zlib
from collections.abc import Callable
from functools import partial

from rows_engines import CODED, EVENT, OK, STREAM, chunk
from rows_holding import answering, asked, read_all
from vectors import Script, Vector
from world import World

_MIB = 1 << 20
_EVENTS = "HTML, section 9.2.6"
_BOMB = "CVE-2016-6581 and others of compressed bombs"
_JSON = "RFC 8259, section 9"


def _stream(piece: bytes) -> list[bytes]:
    """A stream whose first event is followed by 360 kB of `piece`."""
    return [STREAM + chunk(EVENT), chunk(piece * (60_000 // len(piece))) * 6, b"0\r\n\r\n"]


def _event(data: bytes) -> list[bytes]:
    return [STREAM + chunk(EVENT) + chunk(b"data: %b\n\n" % data) + b"0\r\n\r\n"]


def _whole(body: bytes, headers: bytes = b"") -> list[bytes]:
    return [OK + headers + b"content-length: %d\r\n\r\n" % len(body) + body]


def _compressed(body: bytes) -> list[bytes]:
    return _whole(body, b"content-encoding: gzip\r\n")


def _bomb(data: bytes, times: int) -> bytes:
    made = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    return b"".join(made.compress(data) for _ in range(times)) + made.flush()


def _list(each: bytes, number: int) -> bytes:
    return b"[" + b",".join([each] * number) + b"]"


def _keys(number: int) -> bytes:
    return b"{" + b",".join(b'"%07x":0' % i for i in range(number)) + b"}"


CASES: dict[str, tuple[str, Callable[[], list[bytes]]]] = {
    "comments": (_EVENTS, lambda: _stream(b":\n\n")),
    "blank lines": (_EVENTS, lambda: _stream(b"\n\n")),
    "blank lines that end with CR": (_EVENTS, lambda: _stream(b"\r")),
    "events without data": (_EVENTS, lambda: _stream(b"event: x\n\n")),
    "empty events": (_EVENTS, lambda: _stream(b"data: {}\n\n")),
    "errors": (_EVENTS, lambda: _stream(b'data: {"error":{"message":"x"}}\n\n')),
    "usages": (_EVENTS, lambda: _stream(b'data: {"usage":{"prompt_tokens":1}}\n\n')),
    "choices": (_EVENTS, lambda: _stream(EVENT)),
    "comments before anything": (
        _EVENTS,
        lambda: [STREAM, *[chunk(b":\n\n" * 20_000)] * 6, b"0\r\n\r\n"],
    ),
    "an event of many lines": (_EVENTS, lambda: _event(b"{" + b"\ndata:" * 600_000 + b"}")),
    "an event of many choices": (
        _JSON,
        lambda: _event(b'{"choices":%b}' % _list(b'{"index":0}', 330_000)),
    ),
    "an event of many ids": (
        _JSON,
        lambda: _event(b'{"choices":[{"index":0,"token_ids":%b}]}' % _list(b"1", 1_900_000)),
    ),
    "small chunks": ("CVE-2023-39326 (Go)", lambda: [CODED + chunk(b"{") + chunk(b" ") * 100_000]),
    "an answer of many choices": (
        _JSON,
        lambda: _whole(b'{"choices":%b}' % _list(b"{}", 2_700_000)),
    ),
    "an answer of many numbers": (_JSON, lambda: _whole(b'{"a":%b}' % _list(b"1", 3_900_000))),
    "an answer of many keys": (_JSON, lambda: _whole(b'{"a":%b}' % _keys(690_000))),
    "an answer of many keys, and a lone surrogate": (
        _JSON,
        lambda: _whole(b'{"s":"\\ud800","a":%b}' % _keys(690_000)),
    ),
    "an answer of long numbers": (
        "CVE-2020-10735 (Python)",
        lambda: _whole(b'{"s":"\\ud800","a":%b}' % _list(b"9" * 4300, 1900)),
    ),
    "a nested answer": (
        "CVE-2020-36518 (Jackson)",
        lambda: _whole(b'{"a":' + b"[" * 3_000_000 + b"]" * 3_000_000 + b"}"),
    ),
    "100 MB of zeros, compressed": (_BOMB, lambda: _compressed(_bomb(bytes(_MIB), 100))),
    "400 interim answers": (
        "RFC 9110, section 15.2",
        lambda: [b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * 400, *_whole(b"{}")],
    ),
}


def flood(world: World, sent: Callable[[], list[bytes]]) -> None:
    """Check that the request ends, and that its client gets something."""
    parts = sent()
    with answering(world, *parts), asked(world, stream=parts[0].startswith(STREAM[:50])) as sock:
        assert read_all(sock) > 0


VECTORS: list[Vector] = [
    Script(f"flood: {name}", source, partial(flood, sent=sent))
    for name, (source, sent) in CASES.items()
]
