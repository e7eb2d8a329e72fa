"""A process that hangs, stopped by a signal or by itself, is noticed, ended and restarted."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from foretell.services.process.hang import HangLimits, until_hung
from foretell.services.process.keeper import Keeper, Program
from foretell.services.process.probe import http_get

_SERVER = """
import http.server, os, socket, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/hang":
            time.sleep(300)
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
    """The pid of the process that answers; 0 if none does."""
    with contextlib.suppress(OSError, ValueError):
        return int((await http_get(f"http://127.0.0.1:{port}{path}", HangLimits().answer_s))[1])
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
        waits = asyncio.create_task(answers(port))  # a request in its queue when it is ended
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


class Asked:
    """Answers to liveness questions, as a script; there are no more questions than answers."""

    def __init__(self, *said: bool) -> None:
        self.said = list(said)

    async def __call__(self) -> bool:
        if not self.said:
            raise asyncio.CancelledError
        return self.said.pop(0)


@contextlib.contextmanager
def process_of(code: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process that runs `code`."""
    argv = (sys.executable, "-c", f"print(1, flush=True)\n{code}")
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with process_of("import time; time.sleep(300)") as process:
        yield process


@pytest.fixture
def spinner() -> Iterator[subprocess.Popen[bytes]]:
    with process_of("while True: pass") as process:
        yield process


QUICK = HangLimits(every_s=0.0, answer_s=0.01)


async def test_it_takes_so_many_questions_in_a_row(sleeper: subprocess.Popen[bytes]) -> None:
    missed = [False] * (QUICK.missed - 1)
    asked = Asked(*missed, True, *missed, True)
    with pytest.raises(asyncio.CancelledError):
        await until_hung(sleeper.pid, asked, QUICK)
    asked = Asked(*missed, True, *missed, False)
    assert "does nothing" in await until_hung(sleeper.pid, asked, QUICK)
    assert not asked.said


async def test_who_asks_late_counts_a_question_once(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.send_signal(signal.SIGSTOP)
    asked = Asked(*[False] * (QUICK.missed - 1))

    async def late() -> bool:
        said = await asked()
        await asyncio.sleep(20 * QUICK.answer_s)
        return said

    with pytest.raises(asyncio.CancelledError):
        await until_hung(sleeper.pid, late, QUICK)


async def test_one_that_is_busy_has_more_questions(spinner: subprocess.Popen[bytes]) -> None:
    asked = Asked(*[False] * (QUICK.missed_busy - 1))
    with pytest.raises(asyncio.CancelledError):
        await until_hung(spinner.pid, asked, QUICK)
    asked = Asked(*[False] * QUICK.missed_busy)
    assert "busy" in await until_hung(spinner.pid, asked, QUICK)
