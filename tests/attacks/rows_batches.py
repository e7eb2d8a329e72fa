"""Files and batches: uploaded forms, and the lines in them."""

import json
import time
from collections.abc import Callable, Iterator
from functools import partial

from vectors import Script, Vector
from world import MODEL, START_S, World

_MIB = 1 << 20
_FORM = "RFC 7578; CVE-2024-30251 (aiohttp), CVE-2023-30798 (Starlette)"
_LINES = "RFC 8259, section 9"
_KIND = "multipart/form-data; boundary=x"
_PURPOSE = b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
_FILE = b'--x\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n'
_END = b"\r\n--x--\r\n"
_ANSWERED_MIB = 130.0
"""70 for lines in progress, and about as much again that the heaps of the reading threads keep: the
C library maps long pieces separately only until the first of them is freed."""
Body = bytes | Iterator[bytes]


def _again(data: bytes, mib: int) -> Iterator[bytes]:
    """Repeat `data` up to `mib` MiB, in pieces."""
    piece = data * max(1, 60_000 // len(data))
    for _ in range(mib * _MIB // len(piece)):
        yield piece


def _around(first: bytes, again: Iterator[bytes], last: bytes) -> Iterator[bytes]:
    yield first
    yield from again
    yield last


FORMS: dict[str, tuple[int, Callable[[], Body]]] = {
    "parts": (400, lambda: _around(b"", _again(_PURPOSE, 16), _FILE + b"\r\n{}" + _END)),
    "headers of a part": (400, lambda: _around(_FILE, _again(b"a: b\r\n", 32), b"")),
    "one header of a part": (400, lambda: _around(_FILE + b"a: ", _again(b"b", 32), b"")),
    "lines before the form": (400, lambda: _around(b"", _again(b"x\r\n", 32), b"")),
    "one line before the form": (400, lambda: _around(b"", _again(b"x", 32), b"")),
    "a long field": (400, lambda: _around(_PURPOSE[:-2], _again(b"x", 32), b"")),
    "lines that are nearly boundaries": (
        200,
        lambda: _around(_PURPOSE + _FILE + b"\r\n", _again(b"\r\n--", 16), _END),
    ),
    "chunks of 16 bytes": (
        200,
        lambda: _around(
            _PURPOSE + _FILE + b"\r\n", (b"0123456789abcdef" for _ in range(30_000)), _END
        ),
    ),
    "a form within a form": (
        400,
        lambda: b"--x\r\ncontent-type: multipart/mixed; boundary=x\r\n\r\n" * 100_000,
    ),
}


def form(world: World, status: int, body: Callable[[], Body]) -> None:
    """Check that the form gets this status; a bad one may be refused before all is sent."""
    try:
        assert world.ask("POST", "/v1/files", body(), content_type=_KIND)[0] == status
    except (BrokenPipeError, ConnectionResetError):
        assert status == 400


def _line(number: int, body: bytes) -> bytes:
    head = b'{"custom_id":"%d","method":"POST","url":"/v1/completions","body":' % number
    return head + body + b"}\n"


def _completion(prompt: bytes) -> bytes:
    return b'{"model":"%b","prompt":%b}' % (MODEL.encode(), prompt)


def _filled(begin: bytes, again: bytes, mib: int, end: bytes) -> Iterator[bytes]:
    return _around(begin, _again(again, mib), end)


LINES: dict[str, tuple[str, Callable[[], Iterator[bytes]]]] = {
    "a million tiny ones": ("failed", lambda: _again(b"{}\n", 3)),
    "empty ones": ("failed", lambda: _again(b"\n", 32)),
    "nested arrays": ("failed", lambda: _again(b"[" * 15 * _MIB + b"\n", 15)),
    "objects": ("failed", lambda: _filled(b'{"a":[', b"{},", 15, b"{}]}\n")),
    "keys": ("failed", lambda: iter([json.dumps(dict.fromkeys(range(1_000_000))).encode()])),
    "a line of 64 MB": ("failed", lambda: _again(b"x", 64)),
    "values of a body": (
        "failed",
        lambda: _filled(_line(1, b'{"model":"test-model","prompt":[')[:-2], b"1,", 15, b"1]}}\n"),
    ),
    "ten of 14 MB": (
        "completed",
        lambda: iter(
            [_line(i, _completion(b'"%b"' % (b"x " * (15 * _MIB // 2)))) for i in range(10)]
        ),
    ),
}


def lines(world: World, status: str, file: Callable[[], Iterator[bytes]]) -> None:
    """Check that a batch of these lines ends with this status."""
    body = _around(_PURPOSE + _FILE + b"\r\n", file(), _END)
    found, _, told = world.ask("POST", "/v1/files", body, content_type=_KIND)
    assert found == 200, told
    asked = {
        "input_file_id": json.loads(told)["id"],
        "endpoint": "/v1/completions",
        "completion_window": "24h",
    }
    found, _, told = world.ask("POST", "/v1/batches", json.dumps(asked).encode())
    assert found == 200, told
    batch, until_s = json.loads(told), time.monotonic() + START_S
    while batch["status"] in ("validating", "in_progress", "finalizing"):
        assert time.monotonic() < until_s
        time.sleep(0.05)
        batch = json.loads(world.ask("GET", f"/v1/batches/{batch['id']}")[2])
    assert batch["status"] == status
    assert batch["request_counts"]["failed"] == 0


VECTORS: list[Vector] = [
    *(
        Script(f"upload: {name}", _FORM, partial(form, status=status, body=body), world="batches")
        for name, (status, body) in FORMS.items()
    ),
    *(
        Script(
            f"lines: {name}",
            _LINES,
            partial(lines, status=status, file=file),
            world="batches",
            most_mib=50.0 if status == "failed" else _ANSWERED_MIB,
        )
        for name, (status, file) in LINES.items()
    ),
]
