"""The supervisor with stub processes: readiness, restarts, failures, no leftovers."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from foretell import config
from foretell.config.sections import EngineSection
from foretell.services.process.children import ChildFailed
from foretell.services.process.folders import free_ports
from foretell.services.process.keeper import Program
from foretell.tools.local.plan import ClusterPlan, Process
from foretell.tools.local.state import ClusterState
from foretell.tools.local.supervisor import Supervisor
from tests.processes import is_running, read_facts, wait_until

_SERVES = """
import json, os, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
ready_file, port = sys.argv[1], int(sys.argv[2])
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/ready" else 404)
        self.end_headers()
server = HTTPServer(("127.0.0.1", port), Handler)
with open(ready_file + ".part", "w") as file:
    json.dump({"pid": os.getpid()}, file)
os.replace(ready_file + ".part", ready_file)
server.serve_forever()
"""
_FAILS = "raise SystemExit('no such tagger')"


class Cluster:
    """A supervised tagger and scheduler, both stubs."""

    def __init__(
        self, run_dir: Path, *, tagger: str = _SERVES, restart: bool = True, patience_s: float = 30
    ) -> None:
        ports = free_ports("127.0.0.1", 2)
        self.processes = tuple(
            Process(
                kind,  # type: ignore[arg-type]
                f"http://127.0.0.1:{port}",
                Program(
                    name,
                    (sys.executable, "-c", code, str(run_dir / f"{name}.ready"), str(port)),
                    run_dir / f"{name}.log",
                    run_dir / f"{name}.ready",
                    patience_s,
                    port=port,
                    at_end="restart" if restart else "leave",
                ),
            )
            for name, kind, code, port in (
                ("tagger", "tagger", tagger, ports[0]),
                ("scheduler-0", "scheduler", _SERVES, ports[1]),
            )
        )
        layout = config.Layout(config.Cluster(engines=[EngineSection(kind="emulated")]))
        plan = ClusterPlan("http://127.0.0.1:1", self.processes, layout)
        self.file = run_dir / "cluster.json"
        self.events: list[tuple[str, str]] = []
        self.stop = asyncio.Event()
        self.ready = asyncio.Event()
        state = ClusterState.of(plan, self.file)
        state.parts.clear()  # the stubs are not launchers
        supervisor = Supervisor(plan, state, lambda name, text: self.events.append((name, text)))
        self.task = asyncio.create_task(supervisor.run(self.stop, self.ready.set))

    def component(self, name: str) -> dict[str, Any]:
        found: dict[str, Any]
        (found,) = (c for c in read_facts(self.file)["components"] if c["name"] == name)
        return found

    async def end(self) -> None:
        self.stop.set()
        await asyncio.wait_for(self.task, 30)


async def test_ready_then_stopped_without_leftovers(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    await asyncio.wait_for(cluster.ready.wait(), 30)
    facts = read_facts(cluster.file)
    assert facts["state"] == "ready"
    pids = [component["pid"] for component in facts["components"]]
    assert all(is_running(pid) for pid in pids)
    assert {component["state"] for component in facts["components"]} == {"ready"}

    await cluster.end()

    assert not any(is_running(pid) for pid in pids)
    assert read_facts(cluster.file)["state"] == "stopped"


async def test_a_killed_process_is_restarted_at_its_address(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    await asyncio.wait_for(cluster.ready.wait(), 30)
    before = cluster.component("scheduler-0")
    os.kill(before["pid"], signal.SIGKILL)
    await wait_until(
        lambda: (
            (after := cluster.component("scheduler-0"))["state"] == "ready"
            and after["pid"] != before["pid"]
        )
    )
    after = cluster.component("scheduler-0")
    assert (after["restarts"], after["address"]) == (1, before["address"])
    assert cluster.component("tagger")["restarts"] == 0
    assert any("SIGKILL; restarting in 0.5 s" in text for _, text in cluster.events)
    await cluster.end()


async def test_without_restart_the_dead_stay_dead_and_the_rest_serves(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, restart=False)
    await asyncio.wait_for(cluster.ready.wait(), 30)
    os.kill(cluster.component("tagger")["pid"], signal.SIGKILL)
    await wait_until(lambda: cluster.component("tagger")["state"] == "dead")
    assert cluster.component("tagger")["pid"] == 0
    assert not cluster.task.done()
    os.kill(cluster.component("scheduler-0")["pid"], signal.SIGKILL)
    with pytest.raises(ChildFailed, match="every process has ended"):
        await asyncio.wait_for(cluster.task, 30)


async def test_a_process_that_cannot_start_ends_everything_and_shows_why(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, tagger=_FAILS)
    with pytest.raises(ChildFailed, match=r"(?s)tagger exited with code 1; .*no such tagger"):
        await asyncio.wait_for(cluster.task, 30)
    facts = read_facts(cluster.file)
    assert facts["state"] == "failed"
    started = [int(text.rpartition(" ")[2]) for _, text in cluster.events if "with pid" in text]
    assert started
    assert not any(is_running(pid) for pid in started)


async def test_a_process_that_never_serves_is_given_up(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, tagger="import time; time.sleep(300)", patience_s=1.0)
    with pytest.raises(ChildFailed, match="did not serve within 1 s"):
        await asyncio.wait_for(cluster.task, 30)
