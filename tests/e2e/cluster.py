"""Runs `foretell up`: reads its state file, kills components, waits until all are ready again."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.processes import is_running

START_S = 100.0
STOP_S = 30.0


@dataclass
class Cluster:
    """A running local cluster."""

    process: subprocess.Popen[bytes]
    run_dir: Path
    endpoint: str

    def state(self) -> dict[str, Any]:
        """The supervisor's state file; empty before it has been written."""
        path = self.run_dir / "cluster.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def component(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = next(c for c in self.state()["components"] if c["name"] == name)
        return found

    def kill(self, name: str) -> None:
        """SIGKILL one component."""
        os.kill(self.component(name)["pid"], signal.SIGKILL)

    def pause(self, name: str) -> None:
        """SIGSTOP one component: it hangs without ending."""
        os.kill(self.component(name)["pid"], signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """SIGCONT a paused component."""
        os.kill(self.component(name)["pid"], signal.SIGCONT)

    async def pause_for(self, name: str, seconds: float) -> None:
        """Pause a component for a time. A child process resumes it, as this one may be late."""
        pid = self.component(name)["pid"]
        script = f"kill -STOP {pid}; sleep {seconds}; kill -CONT {pid}"
        pausing = await asyncio.create_subprocess_exec("sh", "-c", script)
        assert await pausing.wait() == 0

    def ready(self) -> bool:
        state = self.state()
        components = state.get("components", [])
        return state.get("state") == "ready" and all(c["state"] == "ready" for c in components)

    def await_ready(self, deadline_s: float = START_S) -> None:
        """Wait until every component is up; shows the logs when that fails."""
        end = time.monotonic() + deadline_s
        while not self.ready():
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"the cluster is not ready: {self.state()}\n{self.logs()}")
            time.sleep(0.1)

    def await_restart(self, name: str, before: dict[str, Any]) -> None:
        """Wait until `name` runs under another pid than `before`, and everything is up."""
        until(lambda: self.component(name)["pid"] not in (0, before["pid"]), START_S)
        self.await_ready()

    def logs(self) -> str:
        """The last lines of every log, for failure messages."""
        parts = []
        for path in sorted(self.run_dir.glob("*.log")):
            lines = path.read_text(errors="replace").splitlines()[-15:]
            parts.append(f"--- {path.name}\n" + "\n".join(lines))
        return "\n".join(parts)


def until(condition: Callable[[], bool], deadline_s: float) -> None:
    """Wait for `condition`; fails after `deadline_s`."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "the condition never became true"
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def cluster(
    run_dir: Path,
    *flags: str,
    start_s: float = START_S,
    command: Sequence[str | Path] = (sys.executable, "-m", "foretell.cli.main"),
    **environment: str,
) -> Iterator[Cluster]:
    """`foretell up` with `flags`, stopped and checked for leftovers at the end."""
    port = free_port()
    argv = [*command, "up", "--plain", f"--port={port}", f"--run-dir={run_dir}", *flags]
    log = (run_dir / "up.log").open("wb")
    process = subprocess.Popen(
        argv, stdout=log, stderr=subprocess.STDOUT, env=os.environ | environment
    )
    found = Cluster(process, run_dir, f"http://127.0.0.1:{port}")
    try:
        found.await_ready(start_s)
        yield found
        pids = [c["pid"] for c in found.state()["components"] if c["pid"]]
        process.send_signal(signal.SIGINT)
        assert process.wait(STOP_S) == 0, found.logs()
        until(lambda: not any(map(is_running, pids)), 5.0)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        log.close()
