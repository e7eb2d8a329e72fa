"""Processes go on while they cannot write, because the disk is full."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from foretell.services.process import runtime
from foretell.services.process.children import Child
from tests.processes import wait_until


async def test_what_cannot_be_announced_is_announced_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "_WRITE_AGAIN_S", 0.01)
    folder = tmp_path / "full"
    runtime.announce(str(folder / "ready"), number=1)
    runtime.announce(str(folder / "ready"), number=2)
    folder.mkdir()
    await wait_until((folder / "ready").exists)
    await asyncio.sleep(0.05)  # an older announcement that is still repeated would come now
    assert json.loads((folder / "ready").read_text())["number"] == 2


async def test_a_child_runs_without_a_log_where_none_can_be_opened(tmp_path: Path) -> None:
    said = "import sys; print('hello', flush=True); sys.exit(3)"
    child = await Child.spawn("child", [sys.executable, "-c", said], tmp_path / "full" / "log")
    assert await child.wait() == 3
    await child.stop(0.0)
