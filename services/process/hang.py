"""Notices that a process hangs: it lives, and does not answer."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

Answers = Callable[[], Awaitable[bool]]

EVERY_S = 0.5
"""Between two questions that are answered."""
STOPPED_S = 0.9
"""Without an answer: a process that was stopped by a signal is taken to hang."""
IDLE_S = 1.8
"""So is one that waits for something all the while and does nothing."""
BUSY_S = 20.0
"""So is one that is busy, or would be if it got the processor: it may only have too much to do."""
_IDLE_CPU_S = 0.02


async def until_hung(pid: int, answers: Answers) -> str:
    """Ask the process again and again; returns when it hangs, with what it does instead.

    It takes less than 3 s where `answers` says within a second that there was no answer.
    """
    while True:
        began_s, before_s = time.monotonic(), _cpu_s(pid)
        while not await answers():
            silent_s, state = time.monotonic() - began_s, _state(pid)
            if state == "T" and silent_s >= STOPPED_S:
                return "hangs: it is stopped"
            is_idle = state in ("S", "D") and _cpu_s(pid) - before_s < _IDLE_CPU_S
            if is_idle and silent_s >= IDLE_S:
                return f"hangs: no answer for {silent_s:.1f} s, and it does nothing"
            if silent_s >= BUSY_S:
                return f"hangs: no answer for {silent_s:.0f} s"
            await asyncio.sleep(0.05)
        await asyncio.sleep(EVERY_S)


def _fields(pid: int) -> list[str]:
    """What the kernel says of a process, from its state on; nothing where it does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="latin-1")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _state(pid: int) -> str:
    """The state's letter, as `ps` shows it; "" where it is not known."""
    return (_fields(pid) or [""])[0]


def _cpu_s(pid: int) -> float:
    """CPU time of the process so far."""
    fields = _fields(pid)
    ticks = os.sysconf("SC_CLK_TCK")
    return (int(fields[11]) + int(fields[12])) / ticks if len(fields) > 12 else 0.0
