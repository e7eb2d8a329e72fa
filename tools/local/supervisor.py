"""Keeps a local cluster alive and reports its state."""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

from foretell.config.layout import ENGINES_FILE
from foretell.services.process.keeper import Keeper, Kept
from foretell.services.process.probe import is_up, read_json
from foretell.tools.local.plan import ClusterPlan, Process
from foretell.tools.local.state import ClusterPhase, ClusterState
from foretell.tools.local.wanted import WantedEngines

_POLL_S = 0.1
_PROBE_TIMEOUT_S = 2.0
_STOP_GRACE_S = 10.0
_READY_TIMEOUT_S = 60.0  # from the moment all processes serve

OnEvent = Callable[[str, str], None]  # component, what happened


class Supervisor:
    """Runs a plan. Every change goes to `state` and its file, every event to `on_event`."""

    def __init__(self, plan: ClusterPlan, state: ClusterState, on_event: OnEvent) -> None:
        self._state = state
        self._on_event = on_event
        self._processes = {process.program.name: process for process in plan.processes}
        self._layout = plan.layout
        kept = [p for p in plan.processes if p.kind != "launcher" or not plan.comes_and_goes]
        programs = [process.program for process in kept]
        # With few cores, one engine and one scheduler start first: requests are answered sooner.
        scarce = len(kept) > len(os.sched_getaffinity(0))
        first = {process.kind: process.program.name for process in reversed(kept) if scarce}
        self._keeper = Keeper(
            programs,
            self._changed,
            stop_grace_s=_STOP_GRACE_S,
            first=[first[kind] for kind in ("launcher", "scheduler") if kind in first],
        )
        self._wanted = WantedEngines(
            {p.program.name: p for p in plan.processes if p.kind == "launcher"},
            Path(plan.layout.provisioner_folder) / ENGINES_FILE,
            began=self._began,
            changed=self._changed,
            ended=self._ended,
            stop_grace_s=_STOP_GRACE_S,
        )
        self._comes_and_goes = plan.comes_and_goes

    async def run(self, stop: asyncio.Event, on_ready: Callable[[], None]) -> None:
        """Start everything and supervise it until `stop`.

        Raises ChildFailed if a process does not start to serve, or if all have ended for good.
        """

        async def once_served() -> None:
            await self._until_schedulers_place()
            self._enter("ready")
            on_ready()

        self._state.write()
        watching = [asyncio.create_task(self._watch_launchers())]
        if self._comes_and_goes:
            watching.append(asyncio.create_task(self._wanted.run()))
        phase: ClusterPhase = "failed"
        try:
            await self._keeper.run(stop, once_served)
            phase = "stopped"
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            for component in self._state.components():
                component.pid, component.state = 0, "stopped"
            self._enter(phase)

    def _enter(self, phase: ClusterPhase) -> None:
        self._state.phase = phase
        self._state.write()

    def _began(self, process: Process) -> None:
        self._state.add(process, self._layout)

    def _ended(self, process: Process, what: str) -> None:
        self._state.remove(process.program.name)
        self._state.write()
        self._on_event(process.program.name, what)

    def _changed(self, kept: Kept, what: str) -> None:
        process = self._processes[kept.program.name]
        component = self._state.processes[kept.program.name]
        component.state, component.pid = kept.state, kept.pid
        component.restarts = kept.restarts
        if parts := self._state.parts.get(kept.program.name):
            if kept.state == "ready":
                self._mirror(process)
            else:  # `_mirror` sets them ready, with their pids
                parts.engine.restarts = kept.restarts
                for part in (parts.engine, parts.predictor):
                    part.state = kept.state
                    part.pid = part.pid if kept.pid else 0
        self._state.write()
        where = f" at {process.address}" if kept.state == "ready" and process.address else ""
        self._on_event(kept.program.name, f"{what}{where}")

    async def _watch_launchers(self) -> None:
        while True:
            for name in list(self._state.parts):
                if self._state.processes[name].state == "ready":
                    self._mirror(self._processes[name])
            await asyncio.sleep(_POLL_S)

    def _mirror(self, process: Process) -> None:
        """Take over what a launcher reports about its children, if that has changed."""
        parts = self._state.parts[process.program.name]
        facts = read_json(process.program.ready_file)
        if facts is None:
            return
        engine, predictor = parts.engine, parts.predictor
        engine_was, predictor_was = engine.pid, predictor.pid
        engine.pid, predictor.pid = facts["engine_pid"], facts["predictor_pid"]
        if (engine.pid, predictor.pid) == (engine_was, predictor_was):
            return
        self._state.model_name = facts["model_name"]
        engine.state = "ready"
        predictor.state = "ready" if predictor.pid else "restarting"
        if not predictor.pid:
            self._on_event(predictor.name, f"has ended, log: {process.program.log}")
        elif engine_was == engine.pid:
            predictor.restarts += 1
            self._on_event(predictor.name, f"was restarted with pid {predictor.pid}")
        self._state.write()

    async def _until_schedulers_place(self) -> None:
        deadline_s = time.monotonic() + _READY_TIMEOUT_S
        schedulers = [p for p in self._processes.values() if p.kind == "scheduler"]
        for scheduler in schedulers:
            while not await is_up(f"{scheduler.address}/ready", _PROBE_TIMEOUT_S):
                if time.monotonic() > deadline_s:
                    child = self._keeper.kept[scheduler.program.name].child
                    assert child is not None
                    raise child.failure("has no engine that is ready")
                await asyncio.sleep(_POLL_S / 2)
