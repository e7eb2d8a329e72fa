"""`python -m foretell.services.backend`: one engine, emulated or vLLM, with its predictor sidecar.

When the engine ends or hangs, the launcher ends. A sidecar that ends is restarted while the engine
keeps serving; meanwhile the schedulers place without it.
"""

import asyncio
import json
import logging
from dataclasses import replace

from foretell.config import LauncherSettings
from foretell.services.backend.commands import (
    EnginePaths,
    engine_program,
    predictor_programs,
    rank_of,
)
from foretell.services.process import runtime
from foretell.services.process.children import ChildFailed
from foretell.services.process.folders import free_ports, run_folder, socket_folder
from foretell.services.process.frames import predictor_socket
from foretell.services.process.hang import HangLimits
from foretell.services.process.keeper import Keeper, Kept
from foretell.services.process.logs import setup_logging
from foretell.services.process.probe import http_get, is_up, read_json

_PROBE_TIMEOUT_S = 2.0
_ENGINE_HANGS = HangLimits(every_s=10.0, answer_s=10.0, missed=6, missed_busy=6)
"""The same as the Helm chart's liveness probe: a server whose engine core has died may wait forever
for the end of a request."""
_STOP_GRACE_S = 8.0  # a supervisor that allows 10 s leaves this much for an orderly end

log = logging.getLogger("foretell.launcher")


class Launcher:
    """One engine and its sidecar; `run` starts both and stays until `stop` or the engine's end."""

    def __init__(
        self, settings: LauncherSettings, places: EnginePaths, hangs: HangLimits = _ENGINE_HANGS
    ) -> None:
        self._settings = settings
        self._places = places
        self._port = settings.port
        if settings.engine == "vllm" and not settings.port:
            self._port = free_ports(settings.host, 1)[0]  # vLLM does not tell which it took
        engine = replace(
            engine_program(settings, places, self._port),
            answers=lambda: self._engine_answers(hangs.answer_s),
            hang_limits=hangs,
        )
        if settings.engine == "vllm":  # it writes no ready file
            engine = replace(engine, serves=lambda: self._engine_answers(_PROBE_TIMEOUT_S))
        programs = (engine, *predictor_programs(settings, places))
        self._keeper = Keeper(programs, self._changed, stop_grace_s=_STOP_GRACE_S)
        self._engine, self._predictor, *_ = self._keeper.kept.values()
        self._model_name = ""

    async def run(self, stop: asyncio.Event) -> None:
        """Raises ChildFailed when the engine ends, or if either of them does not start to serve."""
        await self._keeper.run(stop, self._both_serve)

    def _changed(self, kept: Kept, what: str) -> None:
        log.log(logging.INFO if kept.pid else logging.WARNING, "%s %s", kept.program.name, what)
        if self._model_name and kept.state != "starting":
            self._announce()

    async def _both_serve(self) -> None:
        self._model_name = await self._ask_model_name()
        self._announce()

    async def _engine_answers(self, timeout_s: float) -> bool:
        return await is_up(f"{self._url()}/health", timeout_s)

    async def _ask_model_name(self) -> str:
        """The engine's first model."""
        status, body = await http_get(f"{self._url()}/v1/models", _PROBE_TIMEOUT_S)
        if status == 401:  # the engine demands a key, which schedulers send
            return self._settings.served_model_name or self._settings.model
        if status != 200:
            raise OSError(f"{self._url()}/v1/models answers {status}")
        return str(json.loads(body)["data"][0]["id"])

    def _url(self) -> str:
        if self._settings.engine == "vllm":
            return f"http://{self._settings.host}:{self._port}"
        ready = read_json(self._places.engine_ready)
        return str(ready["url"]) if ready else ""

    def _announce(self) -> None:
        ready = read_json(self._places.predictor_ready) or {}
        facts = {
            "url": self._url(),
            "predictor": ready.get("address", self._places.predictor_listen),
            "model_name": self._model_name,
            "engine_pid": self._engine.pid,
            "predictor_pid": self._predictor.pid,
            "predictor_restarts": self._predictor.restarts,
            "name": self._settings.name,
            "emulated": self._settings.engine == "emulated",
        }
        runtime.announce(self._settings.ready_file, **facts)
        log.info("serving: %s", facts)


def main() -> None:
    settings = runtime.load_settings(LauncherSettings)
    setup_logging("info", settings.log_format)
    longest = predictor_socket(rank_of(settings.name, settings.ranks - 1))
    try:
        with run_folder(settings.run_dir) as run_dir, socket_folder(run_dir, longest) as sockets:
            launcher = Launcher(settings, EnginePaths.of(settings, run_dir, sockets))
            runtime.run(launcher.run, starts_others=True)
    except (ChildFailed, OSError) as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
