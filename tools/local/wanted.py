"""Runs the engines that a provisioner wants, which its file names."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from foretell.services.process.children import ChildFailed, RestartPacer
from foretell.services.process.keeper import Keeper, OnChange
from foretell.tools.local.plan import Process

_POLL_S = 0.1


class WantedEngines:
    """Starts a launcher when its name appears in the file, and stops it when it is gone."""

    def __init__(
        self,
        launchers: Mapping[str, Process],
        file: Path,
        *,
        began: Callable[[Process], None],
        changed: OnChange,
        ended: Callable[[Process, str], None],
        stop_grace_s: float,
    ) -> None:
        self._launchers = launchers
        self._file = file
        self._began, self._changed, self._ended = began, changed, ended
        self._stop_grace_s = stop_grace_s
        self._running: dict[str, tuple[asyncio.Event, asyncio.Task[None]]] = {}

    async def run(self) -> None:
        """Run until cancelled; all engines have ended then."""
        try:
            while True:
                wanted = self._wanted()
                for name, (stop, task) in list(self._running.items()):
                    if task.done():
                        task.result()
                        del self._running[name]
                    elif name not in wanted:
                        stop.set()
                for name in wanted - self._running.keys():
                    stop = asyncio.Event()
                    keeping = asyncio.create_task(self._keep(self._launchers[name], stop))
                    self._running[name] = stop, keeping
                await asyncio.sleep(_POLL_S)
        finally:
            for stop, _ in self._running.values():
                stop.set()
            tasks = [task for _, task in self._running.values()]
            await asyncio.gather(*tasks, return_exceptions=True)

    def _wanted(self) -> set[str]:
        try:
            return set(json.loads(self._file.read_text(encoding="utf-8"))) & set(self._launchers)
        except FileNotFoundError:
            return set()
        except (OSError, ValueError):  # a person is editing it: what runs keeps running
            return set(self._running)

    async def _keep(self, process: Process, stop: asyncio.Event) -> None:
        """Keep one launcher running; if it fails to start, try again with growing pauses."""
        pacer = RestartPacer()
        while not stop.is_set():
            self._began(process)
            keeper = Keeper([process.program], self._changed, stop_grace_s=self._stop_grace_s)
            try:
                await keeper.run(stop, _nothing)
                self._ended(process, "was stopped")
            except (ChildFailed, OSError) as error:
                self._ended(process, str(error))
                stopped = asyncio.create_task(stop.wait())
                await asyncio.wait({stopped}, timeout=pacer.delay_s(time.monotonic()))
                stopped.cancel()


async def _nothing() -> None:
    """Do nothing once it serves."""
