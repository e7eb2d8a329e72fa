"""An engine that runs without answering ends with its launcher, and another one is started."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from foretell.config import LauncherSettings
from foretell.services.backend.__main__ import Launcher
from foretell.services.backend.commands import EnginePaths
from foretell.services.process.children import ChildFailed
from foretell.services.process.hang import HangLimits
from foretell.services.process.probe import read_json


async def test_an_engine_that_hangs_ends_its_launcher(tmp_path: Path) -> None:
    ready = tmp_path / "launcher.ready"
    settings = LauncherSettings(
        engine="emulated", name="engine-0", ready_file=str(ready), run_dir=str(tmp_path)
    )
    places = EnginePaths.of(settings, tmp_path, tmp_path)
    launcher = Launcher(settings, places, HangLimits(every_s=0.1, answer_s=0.1))
    running = asyncio.create_task(launcher.run(asyncio.Event()))
    while not (facts := read_json(ready)):
        assert not running.done(), await running
        await asyncio.sleep(0.05)
    os.kill(facts["engine_pid"], signal.SIGSTOP)
    with pytest.raises(ChildFailed, match=r"hangs: .* it is stopped"):
        await asyncio.wait_for(running, 60)
    for pid in (facts["engine_pid"], facts["predictor_pid"]):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
