"""A process that hangs, by a signal or by itself, is noticed, ended and started again."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from foretell.services.process import hang
from foretell.services.process.hang import until_hung
from foretell.services.process.keeper import Keeper, Program
from foretell.services.process.probe import http_get

_SERVER = """
import http.server, os, socket, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/hang":
            time.sleep(300)
        if self.path == "/spin":
            while True:
                pass
        body = str(os.getpid()).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
class Server(http.server.HTTPServer):
    def server_bind(self):
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        super().server_bind()
server = Server(("127.0.0.1", int(sys.argv[2])), Handler)
open(sys.argv[1], "w").write("{}")
server.serve_forever()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def answers(port: int, path: str = "/") -> int:
    """The pid of whoever answers; 0: nobody."""
    with contextlib.suppress(OSError, ValueError):
        return int((await http_get(f"http://127.0.0.1:{port}{path}", 1.0))[1])
    return 0


@contextlib.asynccontextmanager
async def kept(folder: Path, port: int, changes: list[str]):  # type: ignore[no-untyped-def]
    async def is_answered() -> bool:
        return await answers(port) > 0

    ready = folder / "server.ready"
    argv = (sys.executable, "-c", _SERVER, str(ready), str(port))
    program = Program("server", argv, folder / "log", ready, 30.0, answers=is_answered)
    keeper = Keeper([program], lambda _, what: changes.append(what), stop_grace_s=5.0)
    stop, served = asyncio.Event(), asyncio.Event()

    async def once_served() -> None:
        served.set()

    running = asyncio.create_task(keeper.run(stop, once_served))
    try:
        await asyncio.wait_for(served.wait(), 30)
        yield keeper
    finally:
        stop.set()
        await running


async def until_another(port: int, pid: int) -> None:
    async with asyncio.timeout(30):
        while await answers(port) in (0, pid):  # noqa: ASYNC110 - asked over HTTP
            await asyncio.sleep(0.05)


async def test_one_that_is_stopped_is_started_anew(tmp_path: Path) -> None:
    port, changes = free_port(), list[str]()
    async with kept(tmp_path, port, changes) as keeper:
        pid = keeper.kept["server"].pid
        os.kill(pid, signal.SIGSTOP)
        waits = asyncio.create_task(answers(port))  # in its queue when it is ended
        await until_another(port, pid)
        assert await waits != pid
        assert any("it is stopped" in what for what in changes)
        assert keeper.kept["server"].restarts == 1
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_one_that_waits_for_ever_is_started_anew(tmp_path: Path) -> None:
    port, changes = free_port(), list[str]()
    async with kept(tmp_path, port, changes) as keeper:
        pid = keeper.kept["server"].pid
        await answers(port, "/hang")
        await until_another(port, pid)
        assert any("does nothing" in what for what in changes)


async def test_one_that_is_busy_has_more_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, changes = free_port(), list[str]()
    async with kept(tmp_path, port, changes) as keeper:
        pid = keeper.kept["server"].pid
        await answers(port, "/spin")

        async def never() -> bool:
            return False

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(until_hung(pid, never), 2 * hang.IDLE_S)
        monkeypatch.setattr(hang, "BUSY_S", 3.0)
        await until_another(port, pid)


async def test_one_that_answers_late_once_is_left_alone() -> None:
    said = iter([True, False, True, True])

    async def sometimes() -> bool:
        return next(said)

    with pytest.raises((StopAsyncIteration, RuntimeError)):
        await until_hung(os.getpid(), sometimes)
