"""SIGTERM ends a process at once, at any moment of its start."""

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sweeps import cases

MOMENTS = cases(8, 2)
"""The number of moments, evenly spread over a start, at which each service gets the signal."""
WAIT_S = 60.0
ENDED_S = 10.0
SERVICES = {
    "foretell.services.scheduler": ("--port=0", "--instances=[]", "--length-model=shipped"),
    "foretell.services.predictor": (
        "--name=a",
        "--metrics-port=0",
        "--snapshot-endpoint=shm://{}/a",
    ),
    "foretell.services.tagger": ("--metrics-port=0", "--listen=unix:{}/tagger.sock"),
    "foretell.services.provisioner": (
        "--port=0",
        "--schedulers=http://127.0.0.1:1",
        "--folder={}/p",
    ),
    "foretell.services.batch": ("--folder={}/batches", "--schedulers=http://127.0.0.1:1"),
    "foretell.services.backend.emulator": ("--port=0", "--snapshot-endpoint=shm://{}/a"),
    "foretell.services.backend": ("--engine=emulated", "--run-dir={}/run", "--port=0"),
}
LOADING = """
import asyncio
from foretell.services.process import runtime
async def main(stop):
    print("started", flush=True)
    {}
runtime.run(main)
"""


def started(module: str, folder: Path) -> "subprocess.Popen[bytes]":
    flags = [flag.format(folder) for flag in SERVICES[module]]
    command = [sys.executable, "-m", module, f"--ready-file={folder / 'ready'}", *flags]
    log = (folder / "log").open("wb")
    with log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def ended(process: "subprocess.Popen[bytes]") -> int:
    process.send_signal(signal.SIGTERM)
    try:
        return process.wait(ENDED_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder with a short path, for sockets."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.sweep
@pytest.mark.parametrize("module", SERVICES)
def test_a_service_obeys_at_any_moment(module: str, short_path: Path) -> None:
    """Before its first import no handler is installed, so the signal's default action ends it."""
    folder = short_path / "whole"
    folder.mkdir()
    begun = time.monotonic()
    process = started(module, folder)
    while not (folder / "ready").exists():
        assert process.poll() is None, (folder / "log").read_text()
        assert time.monotonic() < begun + WAIT_S
        time.sleep(0.01)
    whole_s = time.monotonic() - begun
    assert ended(process) == 0
    for moment in range(MOMENTS):
        folder = short_path / str(moment)
        folder.mkdir()
        process = started(module, folder)
        time.sleep(whole_s * (moment + 0.5) / MOMENTS)
        assert ended(process) in (0, -signal.SIGTERM)
        text = (folder / "log").read_text()
        assert "Traceback" not in text, text


@pytest.mark.parametrize("busy", ["while True: pass", "await asyncio.sleep(1000)"])
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_what_a_start_does_meanwhile_does_not_matter(busy: str, signum: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LOADING.format(busy)], stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"started\n"
            process.send_signal(signum)
            assert process.wait(ENDED_S) == 0
        finally:
            process.kill()
