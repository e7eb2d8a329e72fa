"""Readers of a replica's own pages: as often as they are answered, or without reading."""

import contextlib
import threading
import time
from functools import partial

from rows_holding import _flood
from vectors import Script, Vector
from world import World

_ISSUE = "bug report on this project, November 2026"
_READERS = 40
_TOLD_OF = 1500
"""The number of requests of the last minute."""
_FOR_S = 1.0
_EXPLAINED = "explained"
_PATHS = ("/status", "/console/state", "/metrics", f"/explain/{_EXPLAINED}")


def _asked(path: str) -> bytes:
    return b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n" % path.encode()


def _remember(world: World) -> None:
    """Make requests, so that the pages have data of the last minute."""

    def ask() -> None:
        for _ in range(_TOLD_OF // 4):
            world.generate()

    asking = [threading.Thread(target=ask) for _ in range(4)]
    for each in asking:
        each.start()
    for each in asking:
        each.join()
    world.generate(x_request_id=_EXPLAINED)
    assert world.ask("GET", f"/explain/{_EXPLAINED}")[0] == 200


def read(world: World, path: str) -> None:
    """Many readers that ask again as soon as they are answered."""
    until_s = time.monotonic() + _FOR_S

    def ask() -> None:
        while time.monotonic() < until_s:
            world.ask("GET", path)

    asking = [threading.Thread(target=ask) for _ in range(_READERS)]
    for each in asking:
        each.start()
    for each in asking:
        each.join()


def unread(world: World, path: str) -> None:
    """Many readers that ask and read nothing."""
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(world.connect()) for _ in range(_READERS)]
        floods = [
            threading.Thread(target=_flood, args=(each, _asked(path) * 1000, _FOR_S))
            for each in socks
        ]
        for each in floods:
            each.start()
        for each in floods:
            each.join()


VECTORS: list[Vector] = [
    Script("pages: requests to be told of", _ISSUE, _remember),
    *(Script(f"pages: {path}, 40 readers", _ISSUE, partial(read, path=path)) for path in _PATHS),
    *(Script(f"pages: {path}, not read", _ISSUE, partial(unread, path=path)) for path in _PATHS),
]
