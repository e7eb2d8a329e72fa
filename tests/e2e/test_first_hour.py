"""The first hour: a cluster in one terminal, `foretell demo` and `status` in another."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.cluster import START_S, STOP_S, free_port, until

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
FORETELL = shlex.join([sys.executable, "-m", "cli.main"])


class Terminals:
    """Windows of a tmux server of its own."""

    def __init__(self, folder: Path) -> None:
        self._socket = str(folder / "tmux.sock")

    def tmux(self, *arguments: str) -> str:
        argv = ["tmux", "-f", "/dev/null", "-S", self._socket, *arguments]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    def run(self, name: str, width: int, command: str) -> None:
        """Run a command in a terminal of `width` columns, which stays when it has ended."""
        text = f"FORETELL_EMULATOR_SPEEDUP=5 {command}; echo ended with $?; exec sleep infinity"
        size = ("-x", str(width), "-y", "60")
        self.tmux("new-session", "-d", "-s", name, *size, "-c", os.getcwd(), text)

    def text(self, name: str) -> str:
        return self.tmux("capture-pane", "-p", "-S", "-200", "-t", name)

    def ended(self, name: str) -> Callable[[], bool]:
        return lambda: "ended with" in self.text(name)


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    found = Terminals(tmp_path)
    found.run("keep", 80, "true")
    yield found
    found.tmux("kill-server")


def test_a_demo_beside_a_cluster(terminals: Terminals, tmp_path: Path) -> None:
    port = free_port()
    up = f"{FORETELL} up --engines 2 --port {port} --run-dir {tmp_path}/run"
    terminals.run("up", 80, up)
    until(lambda: "2 schedulers" in terminals.text("up"), START_S)

    url = f"--url http://127.0.0.1:{port}"
    terminals.run("demo", 120, f"{FORETELL} demo {url} --rate 10 --seconds 2")
    until(terminals.ended("demo"), START_S)
    demo = terminals.text("demo")
    assert "ended with 0" in demo
    assert re.search(r"e2e +\d+\.\d\d s +\d+\.\d\d s +\d+% +\d+%", demo)
    assert "least_outstanding, simulated" in demo

    _ask_what_if(f"http://127.0.0.1:{port}")
    for width in (80, 120, 200):
        name = f"status-{width}"
        terminals.run(name, width, f"{FORETELL} status {url}")
        until(terminals.ended(name), START_S)
        text = terminals.text(name)
        assert re.search(r"engine-0 +up +\d+ \+ \d+ +\d+%", text)
        assert "20 requests" in text
        assert "…" not in text
    assert "20 requests" in terminals.text("up")

    terminals.tmux("send-keys", "-t", "up", "C-c")
    until(terminals.ended("up"), STOP_S)
    assert "ended with 0" in terminals.text("up")


def _ask_what_if(endpoint: str) -> None:
    """The simulation beside the replica, which has seen some of the requests."""
    query = "instances=-1&traffic=2&replicas=2"
    response = httpx.get(f"{endpoint}/console/what-if?{query}", timeout=1.5 * START_S)
    assert response.status_code == 200, response.text
    found = response.json()
    assert found["engines"] == 2
    assert found["as_it_is"]["requests"] == 2 * found["requests"]
    assert found["changed"]["requests"] == 4 * found["requests"]
    assert found["changed"]["e2e_p50_s"] > 0
    assert found["measured"]["requests"] <= found["requests"]
