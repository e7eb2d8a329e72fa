"""Helpers for tests of processes: find them, and wait until a condition holds."""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

DEADLINE_S = 60.0


def is_running(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def processes_with(text: str) -> list[int]:
    """Pids of the running processes whose command line contains `text`."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if text.encode() in command and is_running(int(entry.name)):
            found.append(int(entry.name))
    return found


def descendants(pid: int) -> list[int]:
    """Pids of the running children of a process, and of all their descendants."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            stat = (entry / "stat").read_text()
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found, generation = [], {pid}
    while generation:
        generation = {child for child, parent in parents.items() if parent in generation}
        found += sorted(generation)
    return [each for each in found if is_running(each)]


async def wait_until(condition: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
    """Wait for `condition` to hold; fails the test after `deadline_s`."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        await asyncio.sleep(0.02)


def read_facts(path: Path) -> dict[str, Any]:
    """The JSON object in a ready or state file; empty while there is none."""
    if not path.exists():
        return {}
    facts: dict[str, Any] = json.loads(path.read_text())
    return facts
