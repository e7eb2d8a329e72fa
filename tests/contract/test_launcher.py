"""The launcher as a process: an engine with its sidecar, and failures of either."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from foretell.tools.follower import Follower
from tests.processes import is_running, processes_with, read_facts, wait_until

# Stands in for vLLM's server: it has the same flags and endpoints, and a child process like the
# engine core. Unlike vLLM's, this child ignores SIGTERM.
_FAKE_VLLM = """
import argparse, json, os, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
parser = argparse.ArgumentParser()
for name in "model host port scheduler-cls served-model-name max-num-seqs".split():
    parser.add_argument(f"--{name}")
args = parser.parse_args()
if args.model == "broken":
    raise SystemExit("ValueError: this model has no config.json")
core = subprocess.Popen([sys.executable, "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"])
facts = {"core_pid": core.pid, "args": vars(args), "env": dict(os.environ)}
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        answers = {"/health": {}, "/v1/models": {"data": [{"id": args.served_model_name}]},
                   "/facts": facts}
        self.send_response(200 if self.path in answers else 404)
        self.end_headers()
        self.wfile.write(json.dumps(answers.get(self.path)).encode())
HTTPServer((args.host, int(args.port)), Handler).serve_forever()
"""


@contextmanager
def launcher(
    run_dir: Path, *flags: str, env: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run `python -m foretell.services.backend`; at the end no process may name `run_dir`."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "foretell.services.backend", f"--run-dir={run_dir}"),
            *(f"--ready-file={run_dir / 'ready'}", *flags),
        ],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
    )
    try:
        with process:
            yield process
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=30)
    finally:
        process.kill()
        for pid in processes_with(str(run_dir)):
            os.kill(pid, signal.SIGKILL)


async def served(run_dir: Path) -> dict[str, Any]:
    await wait_until((run_dir / "ready").exists)
    return read_facts(run_dir / "ready")


async def stopped(process: subprocess.Popen[str]) -> str:
    """Wait until the process has ended; return its stderr."""
    await wait_until(lambda: process.poll() is not None)
    assert process.stderr
    return process.stderr.read()


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - a server of this test
        return json.loads(answer.read())


async def known_by(predictor: str) -> str:
    """The instance id of the predictor's engine, once it knows one."""
    follower = Follower(predictor)
    async with asyncio.timeout(20):
        await follower.known()
    follower.close()
    return follower.snapshot.instance_id


async def test_emulated_engine_and_sidecar_serve_and_stop_together(tmp_path: Path) -> None:
    with launcher(tmp_path, "--name=e7", "--engine-args=--model-name tiny") as process:
        facts = await served(tmp_path)
        assert (facts["pid"], facts["name"]) == (process.pid, "e7")
        assert (facts["model_name"], facts["emulated"]) == ("tiny", True)
        assert get(f"{facts['url']}/v1/models")["data"][0]["id"] == "tiny"
        assert await known_by(facts["predictor"]) == "e7"
        children = (facts["engine_pid"], facts["predictor_pid"])
        assert all(os.getsid(pid) == pid for pid in children), "out of reach of a Ctrl-C"

        process.send_signal(signal.SIGTERM)
        await stopped(process)

        assert process.returncode == 0
        assert not any(is_running(pid) for pid in children)
        assert processes_with(str(tmp_path)) == []


async def test_a_dead_sidecar_is_restarted_while_the_engine_serves(tmp_path: Path) -> None:
    with launcher(tmp_path):
        before = await served(tmp_path)
        os.kill(before["predictor_pid"], signal.SIGKILL)
        await wait_until(lambda: read_facts(tmp_path / "ready")["predictor_restarts"] == 1)
        after = read_facts(tmp_path / "ready")
        assert after["engine_pid"] == before["engine_pid"]
        assert after["predictor"] == before["predictor"]
        assert after["predictor_pid"] not in (0, before["predictor_pid"])
        assert await known_by(after["predictor"]) == "engine-0"
        assert get(f"{after['url']}/v1/models")["data"]


async def test_without_restart_the_sidecar_stays_dead(tmp_path: Path) -> None:
    with launcher(tmp_path, "--no-restart") as process:
        before = await served(tmp_path)
        os.kill(before["predictor_pid"], signal.SIGKILL)
        await wait_until(lambda: read_facts(tmp_path / "ready")["predictor_pid"] == 0)
        assert get(f"{before['url']}/v1/models")["data"]
        assert process.poll() is None


async def test_a_dead_engine_ends_the_sidecar_and_the_launcher(tmp_path: Path) -> None:
    with launcher(tmp_path) as process:
        facts = await served(tmp_path)
        os.kill(facts["engine_pid"], signal.SIGKILL)
        errors = await stopped(process)
        assert process.returncode == 1
        assert "engine of engine-0 was ended by SIGKILL; last lines of" in errors
        assert not is_running(facts["predictor_pid"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--engine-args=--no-such-flag",), "no-such-flag"),
        (("--profile=no/profile",), "no/profile"),
        (("--engine=vllm",), "vLLM needs a model"),
        (("--engine=vllm", "--model=m", "--python=/no/python"), "cannot run /no/python"),
    ],
)
async def test_what_cannot_start_says_why(
    tmp_path: Path, flags: tuple[str, ...], message: str
) -> None:
    with launcher(tmp_path, *flags) as process:
        assert message in await stopped(process)
        assert process.returncode == 1
        assert processes_with(str(tmp_path)) == []


async def test_children_of_a_killed_launcher_end(tmp_path: Path) -> None:
    with launcher(tmp_path) as process:
        facts = await served(tmp_path)
        process.kill()
        for pid in (facts["engine_pid"], facts["predictor_pid"]):
            await wait_until(lambda pid=pid: not is_running(pid))


@pytest.fixture
def vllm(tmp_path: Path) -> dict[str, str]:
    """An environment in which `python -m vllm.entrypoints.openai.api_server` is the stand-in."""
    package = tmp_path / "fake" / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    (package / "api_server.py").write_text(_FAKE_VLLM)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").touch()
    path = os.pathsep.join([str(tmp_path / "fake"), os.environ.get("PYTHONPATH", "")])
    return {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}


async def test_vllm_gets_the_plugin_and_takes_its_core_with_it(
    tmp_path: Path, vllm: dict[str, str]
) -> None:
    flags = ("--engine=vllm", "--model=/m", "--served-model-name=m", "--name=v1")
    with launcher(tmp_path, *flags, "--engine-args=--max-num-seqs 8", env=vllm) as process:
        facts = await served(tmp_path)
        assert (facts["model_name"], facts["emulated"]) == ("m", False)
        server = get(f"{facts['url']}/facts")
        assert (
            server["args"]["scheduler_cls"]
            == "foretell.services.backend.vllm.plugin.ForetellScheduler"
        )
        assert (server["args"]["model"], server["args"]["max_num_seqs"]) == ("/m", "8")
        assert server["env"]["FORETELL_PLUGIN_INSTANCE_ID"] == "v1"
        endpoint = server["env"]["FORETELL_PLUGIN_SNAPSHOT_ENDPOINT"]
        snapshots = Path(endpoint.removeprefix("shm://"))
        assert snapshots.name == "v1.snapshots"
        assert snapshots.parent.samefile(tmp_path)  # may be a short alias if the path is long
        assert server["env"]["HF_HUB_OFFLINE"] == "1"

        process.send_signal(signal.SIGTERM)
        await stopped(process)

        assert process.returncode == 0
        pids = (facts["engine_pid"], server["core_pid"], facts["predictor_pid"])
        assert not any(is_running(pid) for pid in pids)


async def test_a_killed_vllm_server_leaves_no_core_behind(
    tmp_path: Path, vllm: dict[str, str]
) -> None:
    flags = ("--engine=vllm", "--model=/m", "--served-model-name=m")
    with launcher(tmp_path, *flags, env=vllm) as process:
        facts = await served(tmp_path)
        core_pid = get(f"{facts['url']}/facts")["core_pid"]
        os.kill(facts["engine_pid"], signal.SIGKILL)
        await stopped(process)
        assert process.returncode == 1
        assert not is_running(core_pid)


async def test_vllm_that_fails_to_load_shows_its_log(tmp_path: Path, vllm: dict[str, str]) -> None:
    with launcher(tmp_path, "--engine=vllm", "--model=broken", env=vllm) as process:
        errors = await stopped(process)
        assert process.returncode == 1
        assert "| ValueError: this model has no config.json" in errors
