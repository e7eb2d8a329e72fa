"""`foretell check` on two real vLLM engines on the CPU: a short run, and one that is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from foretell.tools.check.options import STAGES
from tests.processes import descendants, is_running

pytestmark = [pytest.mark.timeout(600), pytest.mark.vllm]
_WAIT_S = 400.0
_COMMAND = (sys.executable, "-c", "from foretell.cli.main import app; app()", "check")


@contextmanager
def running(output: Path, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    python = os.environ["FORETELL_VLLM_PYTHON"]
    command = (*_COMMAND, f"--output={output}", f"--python={python}", *flags)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def until(condition: Any) -> None:
    deadline_s = time.monotonic() + _WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come to that"
        time.sleep(0.2)


def test_every_stage_leaves_its_result_and_one_page_tells_of_all(tmp_path: Path) -> None:
    minutes = 3.0
    began_s = time.monotonic()
    with running(tmp_path, f"--minutes={minutes}") as process:
        _, said = process.communicate(timeout=_WAIT_S)
    assert process.returncode == 0, said.decode()
    assert time.monotonic() - began_s < 60 * 1.1 * minutes + 10
    found = {stage: read(tmp_path / f"{stage}.json") for stage in STAGES}
    assert [engine["attached"] for engine in found["attach"]["engines"]] == [True, True]
    assert found["attach"]["placed"]["usage"]["completion_tokens"] == 16
    assert found["cost"]["pairs"] > 1
    assert found["truth"]["load"]["measured"] > 0
    assert found["truth"]["as_deployed"]["foretell"]["tpot"]["count"] > 0
    for stage in ("cluster", "beside"):  # on a busy machine a stage may get no time
        assert {"runs", "left_out", "failed"} & set(found[stage])
    page = (tmp_path / "report.md").read_text()
    assert "laboratory" in page
    assert "random weights" in page
    report = read(tmp_path / "report.json")
    assert "errors" in report["truth"]["analysis"] or "failed" in report["truth"]["analysis"]


def test_a_kill_leaves_what_was_measured_and_no_process(tmp_path: Path) -> None:
    with running(tmp_path, "--minutes=5") as process:
        until((tmp_path / "cost.json").exists)
        time.sleep(1.0)  # during the next stage
        started = descendants(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
    until(lambda: not any(map(is_running, started)))
    command = (*_COMMAND, "--report", str(tmp_path))
    page = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    assert "The plugin attached to 2 of 2 engines" in page
    assert "The plugin costs" in page
    assert set(read(tmp_path / "report.json")) == {"verdict", "about", "attach", "cost"}


def test_an_interrupted_check_makes_a_page_and_ends_its_engines(tmp_path: Path) -> None:
    with running(tmp_path, "--minutes=5", "--stages=attach,truth") as process:
        until((tmp_path / "attach.json").exists)
        started = descendants(process.pid)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60.0)
    assert process.returncode == 0
    assert not any(map(is_running, started))
    assert "The plugin attached to 2 of 2 engines" in (tmp_path / "report.md").read_text()
