"""Detects that a process hangs: it lives but does not answer."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

Answers = Callable[[], Awaitable[bool]]

_IDLE_CPU_S = 0.02
"""A process that uses less CPU time than this during one question is idle."""


@dataclass(frozen=True, slots=True)
class HangLimits:
    """How often a process is asked, and how many missing answers mean that it hangs."""

    every_s: float = 0.5
    """Pause after a question that was answered."""
    answer_s: float = 0.5
    """How long one question waits for its answer."""
    missed: int = 4
    """Unanswered questions in a row after which a process hangs that was each time stopped by a
    signal, or idle while it waited for something."""
    missed_busy: int = 40
    """The same for one that is busy or waits for the processor: it may only be overloaded."""


async def until_hung(pid: int, answers: Answers, limits: HangLimits) -> str:
    """Ask the process repeatedly; return once it hangs, with a text that says what it does instead.

    `answers` returns within `answer_s` whether there was an answer. Questions are counted instead
    of seconds: if questions come late on a busy machine, the process gets more time as well. A
    process that goes on within `missed` times `answer_s` is left alone.
    """
    missed = idle = 0
    while True:
        began_s, before_s = time.monotonic(), _cpu_s(pid)
        if await answers():
            missed = idle = 0
            await asyncio.sleep(limits.every_s)
            continue
        # If the question was refused at once, wait as long as for a missing answer.
        await asyncio.sleep(began_s + limits.answer_s - time.monotonic())
        state, used_s = _state(pid), _cpu_s(pid) - before_s
        missed += 1
        idle = idle + 1 if state == "T" or (state == "S" and used_s < _IDLE_CPU_S) else 0
        if idle >= limits.missed or missed >= limits.missed_busy:
            does = {"T": "it is stopped", "S": "it does nothing"} if idle >= limits.missed else {}
            return f"hangs: {missed} questions without an answer, {does.get(state, 'it is busy')}"


def _fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty if it cannot be read."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="latin-1")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _state(pid: int) -> str:
    """The state's letter, as `ps` shows it; "" if unknown."""
    return (_fields(pid) or [""])[0]


def _cpu_s(pid: int) -> float:
    """CPU time of the process so far."""
    fields = _fields(pid)
    ticks = os.sysconf("SC_CLK_TCK")
    return (int(fields[11]) + int(fields[12])) / ticks if len(fields) > 12 else 0.0
