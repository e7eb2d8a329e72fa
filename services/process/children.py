"""Child processes that are started in a session of their own and ended with all they started."""

import asyncio
import contextlib
import os
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from foretell.services.process.runtime import PARENT_PID

_LOG_ROTATE_BYTES = 16 << 20  # checked at each start; one old log is kept
_TAIL_BYTES, _TAIL_LINES = 16 << 10, 20
_LINGER_S = 1.0  # time for what a program has left running, once it has ended by itself
_POLL_S = 0.02
_FIRST_DELAY_S = 0.5
_LONGEST_DELAY_S = 10.0
_WINDOW_S = 60.0


class ChildFailed(Exception):
    """A child ended, or did not serve in time; the message shows the end of its log."""


class Child:
    """One running program. Signals from the terminal do not reach it; its output goes to a file."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.pid = process.pid
        self.log = log
        self._process = process
        self._group_ended = False

    @classmethod
    async def spawn(
        cls, name: str, argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None
    ) -> "Child":
        """Start `argv`, with `env` added to the environment; OSError if it cannot be run."""
        with _open_log(log) as output:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **(env or {}), PARENT_PID: str(os.getpid())},
                start_new_session=True,
            )
        return cls(name, process, log)

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while it runs, negative if a signal ended it."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait for the end of the program itself, not of what it started."""
        return await self._process.wait()

    async def stop(self, grace_s: float) -> None:
        """Send SIGTERM to the program and, after `grace_s`, SIGKILL to the rest of its session."""
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), grace_s)
        await self.end_group(_LINGER_S if self.exit_code is not None else 0.0)
        await self._process.wait()

    async def end_group(self, grace_s: float) -> None:
        """Kill what the program has started and left running, such as vLLM's engine core."""
        if self._group_ended:
            return  # the id may belong to another process group by now
        for _ in range(round(grace_s / _POLL_S)):
            if not self._group_lives():
                break
            await asyncio.sleep(_POLL_S)
        self._group_ended = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def failure(self, what: str) -> ChildFailed:
        """The error that says `what` happened to this child and shows the end of its log."""
        tail = _log_tail(self.log)
        shown = "".join(f"\n  | {line}" for line in tail) or " (empty)"
        return ChildFailed(f"{self.name} {what}; last lines of {self.log}:{shown}")

    def _group_lives(self) -> bool:
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        return True


def _open_log(log: Path) -> BinaryIO:
    if log.exists() and log.stat().st_size > _LOG_ROTATE_BYTES:
        log.replace(log.with_name(f"{log.name}.1"))
    try:
        return log.open("ab")
    except OSError:  # such as a full disk: it runs without a log
        return Path(os.devnull).open("ab")


def describe_exit(code: int) -> str:
    """`exited with code 3`, or `was ended by SIGKILL`."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:  # a realtime signal has no name
        return f"was ended by signal {-code}"


def _log_tail(path: Path) -> list[str]:
    """The last lines of a log, fewer if they are very long; empty if there is none."""
    try:
        with path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - _TAIL_BYTES))
            return log.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]
    except FileNotFoundError:
        return []


class RestartPacer:
    """The pause before a restart, doubled for each restart of the last minute: 0.5 s to 10 s.

    Times are seconds of any monotonic clock.
    """

    def __init__(self) -> None:
        self._recent: deque[float] = deque()

    def delay_s(self, now_s: float) -> float:
        """The pause before a restart that is wanted at `now_s`; the restart counts as made."""
        while self._recent and self._recent[0] <= now_s - _WINDOW_S:
            self._recent.popleft()
        delay_s = min(_FIRST_DELAY_S * 2.0 ** len(self._recent), _LONGEST_DELAY_S)
        self._recent.append(now_s + delay_s)
        return delay_s
