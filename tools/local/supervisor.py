"""Keeps the processes of a local cluster alive, and ends them all together."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from services.process.children import Child, ChildFailed, RestartPacer, describe_exit
from services.process.folders import is_free
from services.process.probe import clear, http_get, read_json
from tools.local.cluster import ClusterPlan, Process
from tools.local.state import ClusterState, Component

_POLL_S = 0.1
_PROBE_TIMEOUT_S = 2.0
_STOP_GRACE_S = 10.0
_PORT_WAIT_S = 15.0
_READY_TIMEOUT_S = 60.0  # from the moment all processes serve

OnEvent = Callable[[str, str], None]  # component, what happened


class Supervisor:
    """Runs a plan. Every change goes to `state` and its file, every event to `on_event`."""

    def __init__(
        self, plan: ClusterPlan, state: ClusterState, on_event: OnEvent, *, restart: bool
    ) -> None:
        self._plan = plan
        self._state = state
        self._on_event = on_event
        self._restart = restart
        self._children: dict[str, Child] = {}
        # By process: whether it has served at least once.
        self._served = {process.name: asyncio.Event() for process in plan.processes}

    async def run(self, stop: asyncio.Event, on_ready: Callable[[], None]) -> None:
        """Start everything and stay until `stop`.

        Raises ChildFailed when a process does not come to serve, or when all have ended for good.
        """
        self._state.write()
        try:
            await self._run_until(stop, on_ready)
        except BaseException:
            await self._end("failed")
            raise
        await self._end("stopped")

    async def _run_until(self, stop: asyncio.Event, on_ready: Callable[[], None]) -> None:
        kept = asyncio.gather(*(self._keep(process) for process in self._plan.processes))
        ready = asyncio.create_task(self._tell_ready(on_ready))
        stopped = asyncio.create_task(stop.wait())
        waited: set[asyncio.Future[Any]] = {kept, ready, stopped}
        try:
            while not stopped.done():
                done, waited = await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                if kept in done:
                    raise ChildFailed("every process has ended, and none may be restarted")
        finally:
            for task in (kept, ready, stopped):
                task.cancel()
            await asyncio.gather(kept, ready, stopped, return_exceptions=True)

    async def _keep(self, process: Process) -> None:
        """Start `process`, and start it again whenever it ends."""
        component = self._state.processes[process.name]
        pacer = RestartPacer()
        while True:
            why = await self._run_once(process, component)
            child = self._children[process.name]
            await child.end_group(0.0)
            if not self._served[process.name].is_set():
                raise child.failure(why)
            self._set(process, "restarting" if self._restart else "dead", pid=0)
            if not self._restart:
                self._on_event(process.name, f"{why}; it stays down (--no-restart)")
                return
            delay_s = pacer.delay_s(time.monotonic())
            self._on_event(process.name, f"{why}; restarting in {delay_s:g} s, log: {process.log}")
            await asyncio.sleep(delay_s)
            await _wait_for_port(process)
            component.restarts += 1
            if parts := self._state.parts.get(process.name):
                parts.engine.restarts += 1

    async def _run_once(self, process: Process, component: Component) -> str:
        """One life of `process`, from its start to its end; returns how it ended."""
        clear(process.ready_file)
        child = await Child.spawn(process.name, process.argv, process.log)
        self._children[process.name] = child
        component.pid = child.pid
        self._set(process, "starting")
        self._on_event(process.name, f"started with pid {child.pid}")
        if why := await self._until_serving(process, child):
            await child.stop(_STOP_GRACE_S)
            return why
        self._mirror(process)
        self._set(process, "ready")
        self._served[process.name].set()
        self._on_event(process.name, f"serves at {process.address}")
        ended = asyncio.create_task(child.wait())
        try:
            while not ended.done():
                self._mirror(process)
                await asyncio.wait({ended}, timeout=_POLL_S)
        finally:
            ended.cancel()
        assert child.exit_code is not None
        return describe_exit(child.exit_code)

    async def _until_serving(self, process: Process, child: Child) -> str:
        """Wait for the ready file; otherwise return what became of the process."""
        deadline = time.monotonic() + process.start_timeout_s
        while time.monotonic() < deadline:
            if process.ready_file.exists():
                return ""
            if child.exit_code is not None:
                return describe_exit(child.exit_code)
            await asyncio.sleep(_POLL_S / 2)
        return f"did not serve within {process.start_timeout_s:g} s"

    def _mirror(self, process: Process) -> None:
        """Take over what a launcher says about its children, when that has changed."""
        parts = self._state.parts.get(process.name)
        facts = read_json(process.ready_file) if parts else None
        if parts is None or facts is None:
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
            self._on_event(predictor.name, f"has ended and will be restarted, log: {process.log}")
        elif engine_was == engine.pid:
            predictor.restarts += 1
            self._on_event(predictor.name, f"was restarted with pid {predictor.pid}")
        self._state.write()

    def _set(self, process: Process, value: Any, pid: int | None = None) -> None:
        components = [self._state.processes[process.name]]
        if (parts := self._state.parts.get(process.name)) and value != "ready":
            # These become ready with their pids, in `_mirror`.
            components += [parts.engine, parts.predictor]
        for component in components:
            component.state = value
            component.pid = component.pid if pid is None else pid
        self._state.write()

    async def _tell_ready(self, on_ready: Callable[[], None]) -> None:
        """Call `on_ready` once every process has served and every scheduler can place."""
        for served in self._served.values():
            await served.wait()  # bounded by each process's own start timeout
        deadline = time.monotonic() + _READY_TIMEOUT_S
        for scheduler in self._plan.schedulers():
            while not await _answers(f"{scheduler.address}/ready"):
                if time.monotonic() > deadline:
                    raise self._children[scheduler.name].failure("has no engine that is ready")
                await asyncio.sleep(_POLL_S / 2)
        self._state.phase = "ready"
        self._state.write()
        on_ready()

    async def _end(self, phase: Any) -> None:
        self._state.phase = "stopping"
        self._state.write()
        await asyncio.gather(*(child.stop(_STOP_GRACE_S) for child in self._children.values()))
        for component in self._state.components():
            component.pid, component.state = 0, "stopped"
        self._state.phase = phase
        self._state.write()


async def _answers(url: str) -> bool:
    try:
        status, _ = await http_get(url, _PROBE_TIMEOUT_S)
    except OSError:
        return False
    return status == 200


async def _wait_for_port(process: Process) -> None:
    """A launcher that was killed leaves an engine behind that takes a moment to end."""
    deadline = time.monotonic() + _PORT_WAIT_S
    while process.port and time.monotonic() < deadline:
        if is_free("127.0.0.1", process.port):
            return
        await asyncio.sleep(_POLL_S)
