"""The command lines of an engine and of its predictor sidecar."""

import os
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from foretell.config import EmulatorSettings, LauncherSettings
from foretell.services.process.keeper import Program
from foretell.services.process.memory_log import endpoint_of_rank

_VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
_SCHEDULER_CLASS = "foretell.services.backend.vllm.plugin.ForetellScheduler"
_PREDICTOR_START_TIMEOUT_S = 60.0
# -P: does not import from the current folder, which may have a folder `services` of its own.
_MODULE = (sys.executable, "-P", "-m")


@dataclass(frozen=True, slots=True)
class EnginePaths:
    """Where one engine and its sidecar keep their files and sockets."""

    engine_ready: Path
    engine_log: Path
    predictor_ready: Path
    predictor_log: Path
    predictor_listen: str
    snapshot_endpoint: str

    @classmethod
    def of(cls, settings: LauncherSettings, run_dir: Path, socket_dir: Path) -> "EnginePaths":
        name = settings.name
        return cls(
            engine_ready=run_dir / f"{name}.engine.ready",
            engine_log=run_dir / f"{name}.engine.log",
            predictor_ready=run_dir / f"{name}.predictor.ready",
            predictor_log=run_dir / f"{name}.predictor.log",
            predictor_listen=settings.predictor_listen
            or f"unix:{socket_dir / name}.predictor.sock",
            snapshot_endpoint=snapshot_endpoint(socket_dir, name),
        )

    def of_ranks(self, settings: LauncherSettings) -> "list[EnginePaths]":
        """Return the places of each data-parallel rank's sidecar; those of rank 0 are these."""
        first, *others = self.predictor_listen.split(",")
        listen = [first, *others] if others else [rank_of(first, k) for k in range(settings.ranks)]
        return [
            replace(
                self,
                predictor_ready=_of_rank(self.predictor_ready, rank),
                predictor_log=_of_rank(self.predictor_log, rank),
                predictor_listen=listen[rank],
                snapshot_endpoint=endpoint_of_rank(self.snapshot_endpoint, rank),
            )
            for rank in range(settings.ranks)
        ]


def rank_of(name: str, rank: int) -> str:
    return f"{name}.rank{rank}" if rank else name


def _of_rank(path: Path, rank: int) -> Path:
    return path.with_name(rank_of(path.name, rank))


def snapshot_endpoint(socket_dir: Path, name: str) -> str:
    """Where engine `name` publishes its snapshots."""
    return f"shm://{socket_dir / f'{name}.snapshots'}"


def engine_program(settings: LauncherSettings, places: EnginePaths, port: int) -> Program:
    """The engine on `port`; 0 lets the emulated engine take a free one."""
    env = {}
    if settings.engine == "vllm":
        argv = _vllm_command(settings, port)
        env["FORETELL_PLUGIN_SNAPSHOT_ENDPOINT"] = places.snapshot_endpoint
        env["FORETELL_PLUGIN_INSTANCE_ID"] = settings.name
        env["FORETELL_PLUGIN_RANKS"] = str(settings.ranks)
        if gpus := visible_gpus(settings.gpus, os.environ.get(_VISIBLE_GPUS, "")):
            env[_VISIBLE_GPUS] = gpus
        if settings.engine_api_key_file:
            env["VLLM_API_KEY"] = Path(settings.engine_api_key_file).read_text().strip()
    else:
        argv = _emulator_command(settings, places, port)
    return Program(
        f"engine of {settings.name}",
        (*argv, *shlex.split(settings.engine_args)),
        places.engine_log,
        places.engine_ready,
        settings.ready_timeout_s,
        env=env,
        at_end="fail",
    )


def visible_gpus(places: str, visible: str) -> str:
    """Return the GPUs at these `places` among those `visible`, both comma-separated.

    Empty if nothing is to change: no places are given, or fewer GPUs are visible than they need,
    because whatever started this process has already chosen its GPUs.
    """
    if not places or not visible:
        return places
    chosen, among = [int(place) for place in places.split(",")], visible.split(",")
    return ",".join(among[place] for place in chosen) if max(chosen) < len(among) else ""


def predictor_programs(settings: LauncherSettings, places: EnginePaths) -> list[Program]:
    """The sidecars of that engine, one for each rank."""
    return [
        _predictor_program(settings, own, rank_of(settings.name, rank))
        for rank, own in enumerate(places.of_ranks(settings))
    ]


def _predictor_program(settings: LauncherSettings, places: EnginePaths, name: str) -> Program:
    flags = _flags(
        name=settings.name,
        listen=places.predictor_listen,
        snapshot_endpoint=places.snapshot_endpoint,
        ready_file=places.predictor_ready,
        cluster=settings.cluster,  # for the settings of sidecars only
        profile=_profile(settings),
    )
    return Program(
        f"predictor of {name}",
        (*_MODULE, "foretell.services.predictor", *flags),
        places.predictor_log,
        places.predictor_ready,
        _PREDICTOR_START_TIMEOUT_S,
        at_end="restart" if settings.restart else "leave",
    )


def _profile(settings: LauncherSettings) -> str:
    if settings.profile or settings.engine == "vllm":
        return settings.profile
    return EmulatorSettings().profile  # so that the sidecar starts from the engine's own default


def _emulator_command(settings: LauncherSettings, places: EnginePaths, port: int) -> list[str]:
    flags = _flags(
        name=settings.name,
        snapshot_endpoint=places.snapshot_endpoint,
        host=settings.host,
        port=port,
        ready_file=places.engine_ready,
        profile=_profile(settings),
        model_name=settings.served_model_name,
    )
    return [*_MODULE, "foretell.services.backend.emulator", *flags]


def _vllm_command(settings: LauncherSettings, port: int) -> list[str]:
    python = settings.python or sys.executable
    flags = _flags(
        model=settings.model,
        host=settings.host,
        port=port,
        scheduler_cls=_SCHEDULER_CLASS,
        served_model_name=settings.served_model_name,
    )
    server = (python, "-m", "vllm.entrypoints.openai.api_server")
    return [*_MODULE, "foretell.services.process.exec_child", *server, *flags]


def _flags(**values: object) -> list[str]:
    """Return `--name=value` for each value that is not empty."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in values.items() if value != ""]
