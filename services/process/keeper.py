"""Keeps programs running: starts them, restarts what ends, and ends all of them together."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from foretell.services.process.children import Child, ChildFailed, RestartPacer, describe_exit
from foretell.services.process.folders import is_free
from foretell.services.process.hang import HangLimits, until_hung

_POLL_S = 0.05
_PORT_WAIT_S = 15.0
_HEAD_START_S = 3.0
"""Longest time that the other programs wait for those that start first."""

AtEnd = Literal["restart", "leave", "fail"]
"""What to do when a program that has served ends: restart it, leave it down, or end all."""
State = Literal["starting", "ready", "restarting", "dead", "stopped"]
Serves = Callable[[], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Program:
    """A program to keep running. It writes `ready_file` when it serves."""

    name: str
    argv: tuple[str, ...]
    log: Path
    ready_file: Path
    start_timeout_s: float
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment."""
    port: int = 0
    """A port of 127.0.0.1 that must be free again before a restart; 0: none."""
    at_end: AtEnd = "restart"
    serves: Serves | None = None
    """Says whether the program serves, if it writes no ready file."""
    answers: Serves | None = None
    """Says whether the program answers once it serves (see `until_hung`). One that hangs is killed
    and counts as ended. None: it is not asked."""
    hang_limits: HangLimits = field(default_factory=HangLimits)

    async def spawn(self) -> Child:
        """Start it. OSError if it cannot be run."""
        self.ready_file.unlink(missing_ok=True)
        return await Child.spawn(self.name, self.argv, self.log, self.env)

    async def until_serving(self, child: Child) -> str:
        """Wait until `child` serves and return ""; otherwise return what happened to it."""
        deadline_s = time.monotonic() + self.start_timeout_s
        while time.monotonic() < deadline_s:
            if await self._serves():
                return ""
            if child.exit_code is not None:
                return describe_exit(child.exit_code)
            await asyncio.sleep(_POLL_S)
        return f"did not serve within {self.start_timeout_s:g} s"

    async def _serves(self) -> bool:
        return await self.serves() if self.serves else self.ready_file.exists()


@dataclass(slots=True)
class Kept:
    """A program and its current state."""

    program: Program
    state: State = "starting"
    child: Child | None = None
    restarts: int = 0
    served: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once it has served for the first time."""

    @property
    def pid(self) -> int:
        """The process id; 0 while it does not run."""
        running = self.child is not None and self.child.exit_code is None
        return self.child.pid if running and self.child else 0


OnChange = Callable[[Kept, str], None]
"""Called after a change of state with what happened, in words."""


class Keeper:
    """Runs programs side by side. `run` may be called once."""

    def __init__(
        self,
        programs: Iterable[Program],
        on_change: OnChange,
        *,
        stop_grace_s: float,
        first: Collection[str] = (),
    ) -> None:
        """`stop_grace_s`: time that a program gets to end by itself before it is killed. The other
        programs start when those named `first` serve, or after `_HEAD_START_S`."""
        self.kept = {program.name: Kept(program) for program in programs}
        self._first = frozenset(first)
        self._on_change = on_change
        self._stop_grace_s = stop_grace_s

    async def run(self, stop: asyncio.Event, once_served: Callable[[], Awaitable[None]]) -> None:
        """Start everything and stay until `stop`; nothing runs any more when this returns.

        `once_served` runs when each program has served once. Raises its error, or ChildFailed if
        a program does not start to serve, if one ends that must not, or if all have ended for good.
        """
        keeping = [asyncio.create_task(self._keep(kept)) for kept in self.kept.values()]
        served = asyncio.create_task(self._when_all_served(once_served))
        stopped = asyncio.create_task(stop.wait())
        tasks = [*keeping, served, stopped]
        try:
            pending = set(tasks)
            while not stopped.done():
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                if pending.isdisjoint(keeping):
                    raise ChildFailed("every process has ended, and none may be restarted")
        finally:
            # Tasks that still start or restart a program must finish before the programs are ended:
            # each task is waited for, not only the first that fails.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*(self._end(kept) for kept in self.kept.values()))

    async def _when_all_served(self, once_served: Callable[[], Awaitable[None]]) -> None:
        for kept in self.kept.values():
            await kept.served.wait()  # bounded by the program's own start timeout
        await once_served()
        await asyncio.Event().wait()

    async def _keep(self, kept: Kept) -> None:
        """Start a program, and start it again whenever it ends."""
        program, pacer = kept.program, RestartPacer()
        if program.name not in self._first:
            await self._until_first_serve()
        while True:
            child, why = await self._live_once(kept)
            await child.end_group(0.0)
            if not kept.served.is_set() or program.at_end == "fail":
                raise child.failure(why)
            if program.at_end == "leave":
                self._set(kept, "dead", f"{why}; it stays down")
                return
            delay_s = pacer.delay_s(time.monotonic())
            self._set(kept, "restarting", f"{why}; restarting in {delay_s:g} s, log: {program.log}")
            await asyncio.sleep(delay_s)
            await _until_free(program.port)
            kept.restarts += 1

    async def _until_first_serve(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HEAD_START_S):
                for name in self._first:
                    await self.kept[name].served.wait()

    async def _live_once(self, kept: Kept) -> tuple[Child, str]:
        """Run a program once, from its start to its end; returns how it ended."""
        child = await self._spawn(kept)
        self._set(kept, "starting", f"started with pid {child.pid}")
        if why := await kept.program.until_serving(child):
            await child.stop(self._stop_grace_s)
            return child, why
        self._set(kept, "ready", "serves")
        kept.served.set()
        return child, await _end_of(child, kept.program)

    async def _spawn(self, kept: Kept) -> Child:
        spawning = asyncio.create_task(kept.program.spawn())
        try:
            kept.child = await asyncio.shield(spawning)
        except asyncio.CancelledError:
            kept.child = await spawning  # it runs by now: it is ended with the others
            raise
        return kept.child

    async def _end(self, kept: Kept) -> None:
        if kept.child is not None:
            await kept.child.stop(self._stop_grace_s)
        kept.state = "stopped"

    def _set(self, kept: Kept, state: State, what: str) -> None:
        kept.state = state
        self._on_change(kept, what)


async def _end_of(child: Child, program: Program) -> str:
    """Wait until a program ends or hangs; return what happened."""
    ended = asyncio.create_task(child.wait())
    hung = None
    if program.answers:
        hung = asyncio.create_task(until_hung(child.pid, program.answers, program.hang_limits))
    tasks = [ended] if hung is None else [ended, hung]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done() and hung is not None:
            return hung.result()
        return describe_exit(await ended)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def start(program: Program, stop_grace_s: float = 5.0) -> Child:
    """Start `program` and return the child once it serves; otherwise end it, raise ChildFailed."""
    child = await program.spawn()
    try:
        if why := await program.until_serving(child):
            raise child.failure(why)
    except BaseException:
        await child.stop(stop_grace_s)
        raise
    return child


async def _until_free(port: int) -> None:
    """Wait until `port` is free: the engine of a killed launcher takes a moment to end."""
    for _ in range(round(_PORT_WAIT_S / _POLL_S)):
        if not port or is_free("127.0.0.1", port):
            return
        await asyncio.sleep(_POLL_S)
