"""Compares the scheduler with uvicorn, with h11 and with httptools, on the vectors of clients."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any

import uvicorn
from vectors import Bytes, Vector
from world import BOUND_S, exchanged

PARSERS = ("h11", "httptools")
_AT_ONCE = 16
Outcome = tuple[tuple[int, ...], str]


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answer at the same paths as a scheduler, after the body has been read."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body, more = body + message.get("body", b""), message.get("more_body", False)
    headers = [(b"content-length", b"0")]
    await send({"type": "http.response.start", "status": _status(scope, body), "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def _status(scope: dict[str, Any], body: bytes) -> int:
    method, path = scope["method"], scope["path"]
    if path == "/v1/completions" and method == "POST":
        with contextlib.suppress(ValueError):
            json.loads(body)
            return 200
        return 400
    if path == "/health":
        return 200 if method in ("GET", "HEAD") else 405
    return 204 if (method, path) == ("OPTIONS", "*") else 404


@contextlib.contextmanager
def serving(parser: str) -> Iterator[int]:
    """The port of a uvicorn with this parser, in a thread of this process."""
    config = uvicorn.Config(
        application, http=parser, ws="none", lifespan="off", log_level="critical", loop="asyncio"
    )
    server = uvicorn.Server(config)
    sock = socket.create_server(("127.0.0.1", 0), backlog=512)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([sock])), daemon=True)
    thread.start()
    try:
        yield sock.getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10)
        sock.close()


def outcomes(port: int, rows: Sequence[Bytes]) -> list[Outcome]:
    """The outcome of each vector at the server on `port`."""

    def one(row: Bytes) -> Outcome:
        expected = len(row.statuses) if row.kept else 0
        with socket.create_connection(("127.0.0.1", port)) as sock:
            return exchanged(sock, row.sent, expected, half_closed=row.half_closed)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(one, rows))


def table(rows: Sequence[Bytes], found: dict[str, list[Outcome]]) -> str:
    """A table with a line for each vector whose outcomes differ."""
    names = list(found)
    lines = ["| vector | " + " | ".join(names) + " | source |", "|:--" * (len(names) + 2) + "|"]
    for i, row in enumerate(rows):
        told = [_told(row, found[name][i]) for name in names]
        if len(set(told)) > 1:
            name = row.name.replace("|", "\\|").replace("`", "'")
            lines.append(f"| `{name}` | {' | '.join(told)} | {row.source} |")
    same = len(rows) - len(lines) + 2
    return "\n".join([f"All three make the same of {same} of {len(rows)} vectors.", "", *lines])


def _told(row: Bytes, outcome: Outcome) -> str:
    """An outcome in words; "open after": the server has not closed the connection in time."""
    statuses, end = outcome
    if end == "kept" and not row.kept:
        end = f"open after {BOUND_S:.0f} s"
    text = " ".join(map(str, statuses[:4])) + (" ..." if len(statuses) > 4 else "")
    return f"{text or 'nothing'}, {end}"


def compare(rows: Sequence[Vector], port: int) -> str:
    """The table, with the scheduler on `port` as one of the servers."""
    sent = [each for each in rows if isinstance(each, Bytes)]
    found = {"Foretell": outcomes(port, sent)}
    for parser in PARSERS:
        with serving(parser) as other:
            found[f"uvicorn {version('uvicorn')}, {parser} {version(parser)}"] = outcomes(
                other, sent
            )
    return table(sent, found)
