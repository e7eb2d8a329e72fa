"""The keeper of processes: whatever fails, no process that it started is left."""

import asyncio
import sys
from pathlib import Path

import pytest

from foretell.services.process import keeper as keeping
from foretell.services.process.children import ChildFailed
from foretell.services.process.keeper import Keeper, Kept, Program, start
from tests.processes import is_running, processes_with, wait_until

_SERVES = "import sys, time; open(sys.argv[1], 'w').write('{}'); time.sleep(300)"
_NEVER_SERVES = "import time; time.sleep(300)"
_FAILS = "raise SystemExit('no such profile')"


def program(folder: Path, name: str, code: str, **changes: object) -> Program:
    ready_file = folder / f"{name}.ready"
    argv = (sys.executable, "-c", code, str(ready_file), str(folder))
    return Program(name, argv, folder / f"{name}.log", ready_file, 30.0, **changes)  # type: ignore[arg-type]


async def nothing() -> None:
    pass


def keeper(*programs: Program) -> Keeper:
    return Keeper(programs, lambda _kept, _what: None, stop_grace_s=5.0)


async def test_a_failed_start_leaves_no_process(tmp_path: Path) -> None:
    kept = keeper(
        program(tmp_path, "good", _SERVES),
        program(tmp_path, "slow", _NEVER_SERVES),
        program(tmp_path, "bad", _FAILS),
    )
    with pytest.raises(ChildFailed, match=r"(?s)bad exited with code 1; .*no such profile"):
        await kept.run(asyncio.Event(), nothing)
    assert processes_with(str(tmp_path)) == []
    assert {one.state for one in kept.kept.values()} == {"stopped"}


async def test_a_stop_in_the_midst_of_starting_leaves_no_process(tmp_path: Path) -> None:
    stop = asyncio.Event()
    programs = [program(tmp_path, f"p{i}", _SERVES) for i in range(8)]
    # At the first sign of life of any process, while others are still being forked.
    running = Keeper(programs, lambda _kept, _what: stop.set(), stop_grace_s=5.0)
    await running.run(stop, nothing)
    assert processes_with(str(tmp_path)) == []


@pytest.mark.parametrize("code", [_SERVES, _NEVER_SERVES])
async def test_others_wait_for_the_first_but_not_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr(keeping, "_HEAD_START_S", 0.1 if code is _NEVER_SERVES else 60.0)
    told: list[tuple[str, str]] = []
    stop = asyncio.Event()

    def note(kept: Kept, what: str) -> None:
        told.append((kept.program.name, kept.state))
        if told[-1] == ("other", "ready"):
            stop.set()

    programs = [program(tmp_path, "other", _SERVES), program(tmp_path, "first", code)]
    await Keeper(programs, note, stop_grace_s=5.0, first=["first"]).run(stop, nothing)
    began = [("first", "starting"), *([("first", "ready")] if code is _SERVES else [])]
    assert told == [*began, ("other", "starting"), ("other", "ready")]


async def test_an_error_once_all_serve_ends_everything(tmp_path: Path) -> None:
    async def broken() -> None:
        raise OSError("the engine has no models")

    with pytest.raises(OSError, match="has no models"):
        await keeper(program(tmp_path, "good", _SERVES)).run(asyncio.Event(), broken)
    assert processes_with(str(tmp_path)) == []


async def test_what_must_not_end_ends_everything(tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []

    def note(kept: Kept, what: str) -> None:
        told.append((kept.program.name, what))

    engine = program(tmp_path, "engine", _SERVES, at_end="fail")
    running = Keeper([engine, program(tmp_path, "side", _SERVES)], note, stop_grace_s=5.0)
    served = asyncio.Event()

    async def once_served() -> None:
        served.set()

    task = asyncio.create_task(running.run(asyncio.Event(), once_served))
    await wait_until(served.is_set)
    child = running.kept["engine"].child
    assert child is not None
    await child.stop(5.0)
    with pytest.raises(ChildFailed, match="engine was ended by SIGTERM"):
        await task
    assert ("side", "serves") in told
    assert processes_with(str(tmp_path)) == []


async def test_one_that_does_not_come_to_serve_is_ended(tmp_path: Path) -> None:
    child = await start(program(tmp_path, "good", _SERVES))
    assert is_running(child.pid)
    await child.stop(5.0)
    with pytest.raises(ChildFailed, match="no such profile"):
        await start(program(tmp_path, "bad", _FAILS))
    assert processes_with(str(tmp_path)) == []
