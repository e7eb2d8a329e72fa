"""Clients that speak TLS, slowly, badly or too often."""

import contextlib
import json
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from http.client import HTTPSConnection
from pathlib import Path

from certificates import make_certificate
from rows_heads import GET
from rows_holding import _flood
from rows_json import completion
from vectors import Script, Vector
from world import BOUND_S, START_S, World, exchanged, scheduler

TRUSTING = ssl.create_default_context()
TRUSTING.check_hostname, TRUSTING.verify_mode = False, ssl.CERT_NONE
_TLS = "world_with_tls"
_SLOW = "CVE-2007-6750 (Slowloris)"
_PEERS = 40
_FLOODING = 10
"""OpenSSL takes some 8 ms for the one-byte records that a turn of the event loop reads from each
client, until it refuses the greeting in them: others wait longer the more clients flood."""
_STALLED = 300
_FOR_S = 1.0


def encrypting(folder: Path) -> tuple[str, ...]:
    """Flags with which a scheduler also serves a port with TLS."""
    certificate, key = make_certificate(folder)
    files = "--https-certificate", certificate, "--https-key", key
    return ("--https-listen", "127.0.0.1:0", *files)


def _connect(world: World) -> socket.socket:
    return socket.create_connection(("127.0.0.1", world.tls_port), timeout=BOUND_S)


def _greeting() -> bytes:
    """A complete ClientHello."""
    read, write = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        TRUSTING.wrap_bio(read, write).do_handshake()
    return write.read()


def _record(kind: int, payload: bytes) -> bytes:
    return bytes((kind, 3, 1)) + len(payload).to_bytes(2) + payload


def _each(number: int, do: Callable[[], None]) -> None:
    threads = [threading.Thread(target=do) for _ in range(number)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def stalled(world: World, begun: bytes) -> None:
    """Handshakes that begin and do not continue."""
    with contextlib.ExitStack() as stack:
        for _ in range(_STALLED):
            stack.enter_context(_connect(world)).sendall(begun)
        time.sleep(0.5)
        assert world.generate()[0] == 200


def slow(world: World) -> None:
    """Handshakes of many clients, one byte at a time."""
    hello = _greeting()
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(_connect(world)) for _ in range(_PEERS)]
        for at in range(60):
            for each in socks:
                each.sendall(hello[at : at + 1])
            time.sleep(0.02)
        assert world.generate()[0] == 200


def handshakes(world: World) -> None:
    """Many clients that only complete handshakes, one after the other."""
    until_s = time.monotonic() + _FOR_S

    def greet() -> None:
        while time.monotonic() < until_s:
            with contextlib.suppress(OSError), _connect(world) as sock:
                TRUSTING.wrap_socket(sock).close()

    _each(_PEERS, greet)


def greetings(world: World) -> None:
    """Clients that send a ClientHello only, which costs the server a signature."""
    hello, until_s = _greeting(), time.monotonic() + _FOR_S

    def greet() -> None:
        while time.monotonic() < until_s:
            with contextlib.suppress(OSError), _connect(world) as sock:
                sock.sendall(hello)
                sock.recv(1)

    _each(_PEERS, greet)


def flood(world: World, first: bytes, again: bytes) -> None:
    """Send bytes that are no handshake, as many as are accepted; reconnect when closed."""
    until_s = time.monotonic() + _FOR_S

    def send() -> None:
        while time.monotonic() < until_s:
            with contextlib.suppress(OSError), _connect(world) as sock:
                sock.sendall(first)
                _flood(sock, again * (60_000 // len(again)), until_s - time.monotonic())

    _each(_FLOODING, send)


def unread(world: World) -> None:
    """Requests for many answers that are not read."""
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(TRUSTING.wrap_socket(_connect(world))) for _ in range(_PEERS)]
        asked = b"GET /console/requests.js HTTP/1.1\r\nhost: x\r\n\r\n" * 1200
        floods = [threading.Thread(target=_flood, args=(each, asked, _FOR_S)) for each in socks]
        for each in floods:
            each.start()
        for each in floods:
            each.join()


def long_body(world: World) -> None:
    body = completion(prompt=b'"%b"' % (b"QUJD" * (10 << 20)))
    where = "127.0.0.1", world.tls_port
    with contextlib.closing(HTTPSConnection(*where, timeout=START_S, context=TRUSTING)) as client:
        client.request("POST", "/v1/completions", body)
        assert client.getresponse().status == 200


def descriptors(world: World) -> None:
    """Unfinished handshakes take nearly all descriptors: existing connections go on."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        flags = encrypting(Path(name))
        limited = ("sh", "-c", 'ulimit -n 80; exec "$@"', "sh")
        small = stack.enter_context(scheduler(Path(name), world.engine, *flags, prefix=limited))
        first = stack.enter_context(TRUSTING.wrap_socket(_connect(small)))
        assert exchanged(first, (GET,), 1) == ((200,), "kept")
        for _ in range(150):
            with contextlib.suppress(OSError):
                stack.enter_context(_connect(small)).sendall(_greeting()[:20])
        body = json.dumps({"model": "test-model", "prompt": "x"}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
        sent = head % len(body) + body
        assert exchanged(first, (GET, sent, GET), 3) == ((200,) * 3, "kept")
        assert "file descriptors run out" in (Path(name) / "log").read_text()


_ALERT = _record(21, b"\x01\x64")
_FLOODS = {
    "no TLS": (b"", GET),
    "random bytes": (b"", bytes(range(256))),
    "empty records": (b"", _record(22, b"")),
    "records of one byte": (b"", _record(22, b"\x01")),
    "warnings": (b"", _ALERT),
    "warnings behind a greeting": (_greeting(), _ALERT),
    "greetings behind a greeting": (_greeting(), _greeting()),
    "a greeting of 16 MB": (_record(22, b"\x01\xff\xff\xff"), _record(22, bytes(16_000))),
}

VECTORS: list[Vector] = [
    *(
        Script(f"tls: {name}", _SLOW, partial(stalled, begun=begun), world=_TLS)
        for name, begun in (
            ("connections that say nothing", b""),
            ("half greetings", _greeting()[:100]),
            ("greetings without an end", _greeting()),
        )
    ),
    Script("tls: a byte at a time", _SLOW, slow, world=_TLS),
    Script("tls: handshakes", "CVE-2011-1473 (OpenSSL)", handshakes, world=_TLS),
    Script("tls: greetings", "CVE-2011-1473 (OpenSSL)", greetings, world=_TLS),
    *(
        Script(
            f"tls: {name}", "RFC 8446, section 5.1", partial(flood, first=a, again=b), world=_TLS
        )
        for name, (a, b) in _FLOODS.items()
    ),
    Script("tls: answers that are not read", "CVE-2007-6750 (Slowloris)", unread, world=_TLS),
    Script("tls: a body of 40 MB", "RFC 8446", long_body, world=_TLS),
    Script("tls: descriptors", "accept(2), EMFILE", descriptors, world=_TLS),
]
