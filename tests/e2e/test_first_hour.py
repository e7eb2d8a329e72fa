"""The first hour, by the first page's own commands: a cluster in one terminal, `foretell demo` and
`status` in another."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.cluster import STOP_S, free_port, until

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
FORETELL = shlex.join([sys.executable, "-m", "foretell.cli.main"])
INSTALLED = ".venv/bin/foretell"
WAIT_S = 240.0
DEMO = f"{INSTALLED} demo"
RENDER = f"{INSTALLED} render compose"
COMMANDS = {
    "git clone REPOSITORY foretell && cd foretell",  # readers have done this already
    "make run",
    DEMO,
    RENDER,
    "docker compose up --build --detach --wait",  # tested in tests/compose
}
"""The commands of the first page. test_docs_commands.py runs those marked `sh run`."""
COLUMNS = {80: "share", 120: "placed", 200: "address"}
"""By width of the terminal: a column that the table shows, and a narrower table does not."""


# Readline exports the size of its own terminal to all child processes.
_OURS = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}


class Terminals:
    """Terminal windows in a separate tmux server."""

    def __init__(self, folder: Path) -> None:
        self._socket = str(folder / "tmux.sock")

    def tmux(self, *arguments: str) -> str:
        argv = ["tmux", "-f", "/dev/null", "-S", self._socket, *arguments]
        done = subprocess.run(argv, env=_OURS, capture_output=True, text=True, check=True)
        return done.stdout

    def run(self, name: str, width: int, command: str) -> None:
        """Run a command in a terminal of `width` columns, which stays open afterwards."""
        text = f"FORETELL_EMULATOR_SPEEDUP=5 {command}; echo ended with $?; exec sleep infinity"
        size = ("-x", str(width), "-y", "60")
        self.tmux("new-session", "-d", "-s", name, *size, "-c", os.getcwd(), text)

    def resize(self, name: str, width: int) -> None:
        self.tmux("resize-window", "-t", name, "-x", str(width))

    def shown(self, name: str) -> str:
        """The visible text of the terminal."""
        return self.tmux("capture-pane", "-p", "-t", name)

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


def as_installed(command: str) -> str:
    assert command.startswith(INSTALLED)
    return command.replace(INSTALLED, FORETELL, 1)


def what_make_runs(target: str, *variables: str) -> str:
    """The last command of a make target; the commands before it are set-up."""
    done = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", target, *variables],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()[-1]


def test_the_first_page_has_no_command_that_no_test_runs() -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert {line for block in blocks for line in block.splitlines()} == COMMANDS


def test_the_cluster_file_of_the_first_page_becomes_a_compose_file(tmp_path: Path) -> None:
    (content,) = re.findall(r"^```yaml\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    (tmp_path / "cluster.yaml").write_text(content)
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    subprocess.run(
        shlex.split(as_installed(RENDER)),
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        check=True,
    )
    services = yaml.safe_load((tmp_path / "docker-compose.yml").read_text())["services"]
    assert {"scheduler-0", "scheduler-1", "tagger", "engine-0", "engine-1"} <= set(services)
    assert [services[f"scheduler-{n}"]["ports"] for n in (0, 1)] == [
        [f"${{BIND:-127.0.0.1}}:${{SCHEDULER_{n}_PORT:-{8000 + n}}}:8000"] for n in (0, 1)
    ]


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
@pytest.mark.timeout(900)
def test_a_demo_beside_a_cluster(terminals: Terminals, tmp_path: Path) -> None:
    port = free_port()
    up = as_installed(what_make_runs("run", "ENGINES=2", f"PORT={port}"))
    terminals.run("up", 80, f"{up} --run-dir {tmp_path}/run")
    until(lambda: "2 schedulers" in terminals.text("up"), WAIT_S)

    url = f"--url http://127.0.0.1:{port}"
    terminals.run("demo", 120, f"{as_installed(DEMO)} {url} --rate 10 --seconds 2")
    until(terminals.ended("demo"), WAIT_S)
    demo = terminals.text("demo")
    assert "ended with 0" in demo
    assert re.search(r"e2e +\d+\.\d\d s +\d+\.\d\d s +\d+% +\d+%", demo)

    for width, column in COLUMNS.items():
        name = f"status-{width}"
        terminals.run(name, width, f"{FORETELL} status {url}")
        until(terminals.ended(name), WAIT_S)
        _fits(terminals.text(name), width)
        terminals.resize("up", width)
        until(lambda column=column: column in terminals.shown("up"), WAIT_S)
        _fits(terminals.shown("up"), width)

    terminals.tmux("send-keys", "-t", "up", "C-c")
    until(terminals.ended("up"), STOP_S)
    assert "ended with 0" in terminals.text("up")


def _fits(text: str, width: int) -> None:
    assert re.search(r"engine-0 +up +\d+ \+ \d+ +\d+%", text)
    assert "20 requests" in text
    assert "…" not in text
    assert {wide for wide, column in COLUMNS.items() if column in text} == {
        wide for wide in COLUMNS if wide <= width
    }
