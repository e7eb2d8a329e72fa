"""Runs one engine, emulated or vLLM, with its predictor sidecar, as two child processes.

The engine is what matters: when it ends, the launcher ends. A sidecar that ends is started again
while the engine keeps serving, because the schedulers place without it meanwhile.
"""

import asyncio
import contextlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path

from foretell.config import LauncherSettings
from services.backend.commands import Command, Places, engine_command, predictor_command
from services.process import runtime
from services.process.children import Child, ChildFailed, RestartPacer, describe_exit
from services.process.folders import free_ports, run_folder, socket_folder
from services.process.probe import clear, http_get, read_json

_POLL_S = 0.1
_PROBE_TIMEOUT_S = 2.0
_PREDICTOR_READY_TIMEOUT_S = 240.0  # the first one on a machine may have to compile the twin
_STOP_GRACE_S = 8.0  # what a supervisor that allows 10 s leaves for an orderly end

log = logging.getLogger("foretell.launcher")


@dataclass(frozen=True, slots=True)
class _Engine:
    url: str
    model_name: str


class Launcher:
    """One engine and its sidecar; `run` starts both and stays until `stop` or the engine's end."""

    def __init__(self, settings: LauncherSettings, places: Places) -> None:
        self._settings = settings
        self._places = places
        self._children: dict[str, Child] = {}
        self._predictor_restarts = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Raises ChildFailed when the engine ends, or either does not come to serve."""
        try:
            await self._run_until(stop)
        finally:
            await asyncio.gather(*(c.stop(_STOP_GRACE_S) for c in self._children.values()))

    async def _run_until(self, stop: asyncio.Event) -> None:
        port = self._settings.port
        if self._settings.engine == "vllm" and port == 0:
            port = free_ports(self._settings.host, 1)[0]  # vLLM does not tell which it took
        engine = await self._spawn(
            "engine",
            engine_command(self._settings, self._places, port),
            self._places.engine_log,
            self._places.engine_ready,
        )
        await self._spawn_predictor()
        tasks = {
            asyncio.create_task(stop.wait()),
            asyncio.create_task(self._watch_engine(engine)),
            asyncio.create_task(self._serve(engine, port)),
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch_engine(self, engine: Child) -> None:
        code = await engine.wait()
        raise engine.failure(describe_exit(code))

    async def _serve(self, engine: Child, port: int) -> None:
        """Wait until both serve, say so, then keep the sidecar alive."""
        deadline = asyncio.get_running_loop().time() + self._settings.ready_timeout_s
        predictor = self._children["predictor"]
        if ended := await self._predictor_ready(predictor):
            raise predictor.failure(ended)
        facts = await self._engine_ready(engine, port, deadline)
        self._announce(facts)
        if not self._settings.restart:
            await predictor.wait()
            await predictor.end_group(0.0)
            self._announce(facts)
            log.warning("the predictor has ended and is not restarted (--no-restart)")
            await asyncio.Event().wait()
        pacer = RestartPacer()
        while True:
            why = describe_exit(await self._children["predictor"].wait())
            self._announce(facts)
            await self._restart_predictor(pacer, why)
            self._announce(facts)

    async def _restart_predictor(self, pacer: RestartPacer, why: str) -> None:
        """Return when another sidecar serves in the place of the one that has ended."""
        predictor = self._children["predictor"]
        while True:
            delay_s = pacer.delay_s(asyncio.get_running_loop().time())
            log.warning("%s; restarting it in %.1f s", predictor.failure(why, lines=5), delay_s)
            await predictor.end_group(0.0)
            await asyncio.sleep(delay_s)
            predictor = await self._spawn_predictor()
            self._predictor_restarts += 1
            if not (why := await self._predictor_ready(predictor)):
                return
            await predictor.stop(0.0)

    async def _spawn_predictor(self) -> Child:
        return await self._spawn(
            "predictor",
            predictor_command(self._settings, self._places),
            self._places.predictor_log,
            self._places.predictor_ready,
        )

    async def _spawn(self, role: str, command: Command, log_file: Path, ready: Path) -> Child:
        clear(ready)
        name = f"{role} of {self._settings.name}"
        child = await Child.spawn(name, command.argv, log_file, command.env)
        self._children[role] = child
        log.info("%s started with pid %d", name, child.pid)
        return child

    async def _engine_ready(self, engine: Child, port: int, deadline: float) -> _Engine:
        """Wait for the engine to answer; its own end is noticed by `_watch_engine`."""
        loop = asyncio.get_running_loop()
        while loop.time() < deadline:
            if url := self._engine_url(port):
                with contextlib.suppress(OSError):  # not listening yet
                    return await self._ask_engine(url)
            await asyncio.sleep(_POLL_S)
        raise engine.failure(f"did not serve within {self._settings.ready_timeout_s:g} s")

    async def _ask_engine(self, url: str) -> _Engine:
        """The engine's address and first model; OSError while it is not ready to serve."""
        status, _ = await http_get(f"{url}/health", _PROBE_TIMEOUT_S)
        if status != 200:
            raise OSError(f"{url}/health answers {status}")
        status, body = await http_get(f"{url}/v1/models", _PROBE_TIMEOUT_S)
        if status == 401:  # the engine wants a key, which is the schedulers' business
            return _Engine(url, self._settings.served_model_name or self._settings.model)
        if status != 200:
            raise OSError(f"{url}/v1/models answers {status}")
        return _Engine(url, str(json.loads(body)["data"][0]["id"]))

    def _engine_url(self, port: int) -> str:
        if self._settings.engine == "vllm":
            return f"http://{self._settings.host}:{port}"
        ready = read_json(self._places.engine_ready)
        return str(ready["url"]) if ready else ""

    async def _predictor_ready(self, predictor: Child) -> str:
        """Wait until the sidecar serves; otherwise return what became of it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _PREDICTOR_READY_TIMEOUT_S
        while loop.time() < deadline:
            if self._places.predictor_ready.exists():
                return ""
            if predictor.exit_code is not None:
                return describe_exit(predictor.exit_code)
            await asyncio.sleep(_POLL_S)
        return f"did not serve within {_PREDICTOR_READY_TIMEOUT_S:g} s"

    def _announce(self, engine: _Engine) -> None:
        predictor = self._children["predictor"]
        ready = read_json(self._places.predictor_ready) or {}
        facts = {
            "url": engine.url,
            "predictor": ready.get("address", self._places.predictor_listen),
            "model_name": engine.model_name,
            "engine_pid": self._children["engine"].pid,
            "predictor_pid": predictor.pid if predictor.exit_code is None else 0,
            "predictor_restarts": self._predictor_restarts,
            "instance_id": self._settings.name,
            "emulated": self._settings.engine == "emulated",
        }
        runtime.announce(self._settings.ready_file, **facts)
        log.info("serving: %s", facts)


def main() -> None:
    settings = runtime.load_settings(LauncherSettings)
    runtime.setup_logging("info")
    if settings.engine == "vllm" and not settings.model:
        raise SystemExit("LauncherSettings: model: vLLM needs a model folder or name")
    longest = Places.longest_socket_name(settings.name)
    try:
        with run_folder(settings.run_dir) as run_dir, socket_folder(run_dir, longest) as sockets:
            launcher = Launcher(settings, Places.of(settings, run_dir, sockets))
            runtime.run(launcher.run)
    except (ChildFailed, OSError) as error:
        raise SystemExit(str(error)) from error
