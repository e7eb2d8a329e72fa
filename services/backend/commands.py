"""The command lines of an engine and of its predictor sidecar."""

import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path

from foretell.config import EmulatorSettings, LauncherSettings

_SCHEDULER_CLASS = "services.backend.vllm.plugin.ForetellScheduler"
# -P: a folder `services` where the user happens to stand is not ours.
_MODULE = (sys.executable, "-P", "-m")


@dataclass(frozen=True, slots=True)
class Places:
    """Where one engine and its sidecar keep their files and sockets."""

    engine_ready: Path
    engine_log: Path
    predictor_ready: Path
    predictor_log: Path
    predictor_listen: str  # gRPC address
    snapshot_endpoint: str  # ZMQ endpoint

    @staticmethod
    def longest_socket_name(instance_id: str) -> str:
        return f"{instance_id}.predictor.sock"

    @classmethod
    def of(cls, settings: LauncherSettings, run_dir: Path, socket_dir: Path) -> "Places":
        name = settings.name
        return cls(
            engine_ready=run_dir / f"{name}.engine.ready",
            engine_log=run_dir / f"{name}.engine.log",
            predictor_ready=run_dir / f"{name}.predictor.ready",
            predictor_log=run_dir / f"{name}.predictor.log",
            predictor_listen=settings.predictor_listen
            or f"unix:{socket_dir / cls.longest_socket_name(name)}",
            snapshot_endpoint=f"ipc://{socket_dir / f'{name}.ipc'}",
        )


@dataclass(frozen=True, slots=True)
class Command:
    """A program to run and what to add to its environment."""

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)


def engine_command(settings: LauncherSettings, places: Places, port: int) -> Command:
    """The engine on `port`; 0 lets the emulated engine take a free one."""
    if settings.engine == "vllm":
        return _vllm_command(settings, places, port)
    return _emulator_command(settings, places, port)


def predictor_command(settings: LauncherSettings, places: Places) -> Command:
    argv = [
        *_MODULE,
        "services.predictor",
        f"--name={settings.name}",
        f"--listen={places.predictor_listen}",
        f"--snapshot-endpoint={places.snapshot_endpoint}",
        f"--ready-file={places.predictor_ready}",
    ]
    if profile := _profile(settings):
        argv.append(f"--profile={profile}")
    return Command(tuple(argv))


def _profile(settings: LauncherSettings) -> str:
    if settings.profile or settings.engine == "vllm":
        return settings.profile
    return EmulatorSettings().profile  # so that the sidecar starts from the engine's own default


def _emulator_command(settings: LauncherSettings, places: Places, port: int) -> Command:
    argv = [
        *_MODULE,
        "services.backend.emulator",
        f"--name={settings.name}",
        f"--snapshot-endpoint={places.snapshot_endpoint}",
        f"--host={settings.host}",
        f"--port={port}",
        f"--ready-file={places.engine_ready}",
        f"--profile={_profile(settings)}",
    ]
    if settings.served_model_name:
        argv.append(f"--model-name={settings.served_model_name}")
    return Command((*argv, *shlex.split(settings.engine_args)))


def _vllm_command(settings: LauncherSettings, places: Places, port: int) -> Command:
    argv = [
        *_MODULE,
        "services.process.exec_child",
        settings.python or sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        f"--model={settings.model}",
        f"--host={settings.host}",
        f"--port={port}",
        f"--scheduler-cls={_SCHEDULER_CLASS}",
    ]
    if settings.served_model_name:
        argv.append(f"--served-model-name={settings.served_model_name}")
    env = {
        "FORETELL_PLUGIN_SNAPSHOT_ENDPOINT": places.snapshot_endpoint,
        "FORETELL_PLUGIN_INSTANCE_ID": settings.name,
    }
    return Command((*argv, *shlex.split(settings.engine_args)), env)
