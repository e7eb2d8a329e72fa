"""Notices that a process hangs: it lives, and does not answer."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

Answers = Callable[[], Awaitable[bool]]

_IDLE_CPU_S = 0.02
"""CPU time in one question of a process that does nothing."""


@dataclass(frozen=True, slots=True)
class HangLimits:
    """How often a process is asked, and how many missing answers mean that it hangs."""

    every_s: float = 0.5
    """Between two questions that are answered."""
    answer_s: float = 0.5
    """How long one question waits for its answer."""
    missed: int = 4
    """So many questions in a row without an answer, and a process hangs that was seen each time to
    be stopped by a signal, or to wait for something and do nothing."""
    missed_busy: int = 40
    """So does one that is busy, or waits for the processor: it may only have too much to do."""


async def until_hung(pid: int, answers: Answers, limits: HangLimits) -> str:
    """Ask the process again and again; returns when it hangs, with what it does instead.

    `answers` says within `answer_s` whether there was an answer. Questions are counted, not
    seconds: who asks late, since the machine is busy, does not take the time from the process. One
    that goes on within `missed` times `answer_s` is left alone.
    """
    missed = idle = 0
    while True:
        began_s, before_s = time.monotonic(), _cpu_s(pid)
        if await answers():
            missed = idle = 0
            await asyncio.sleep(limits.every_s)
            continue
        # Where the question was refused at once:
        await asyncio.sleep(began_s + limits.answer_s - time.monotonic())
        state, used_s = _state(pid), _cpu_s(pid) - before_s
        missed += 1
        idle = idle + 1 if state == "T" or (state == "S" and used_s < _IDLE_CPU_S) else 0
        if idle >= limits.missed or missed >= limits.missed_busy:
            does = {"T": "it is stopped", "S": "it does nothing"} if idle >= limits.missed else {}
            return f"hangs: {missed} questions without an answer, {does.get(state, 'it is busy')}"


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
