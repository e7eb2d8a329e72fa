"""The plan of a local cluster: which processes run, with which flags, at which addresses."""

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["tagger", "launcher", "scheduler"]

ENGINE_HOST = "127.0.0.1"  # engines are the schedulers' own business
SERVICE_START_TIMEOUT_S = 60.0
# -P: a folder `services` where the user happens to stand is not ours.
_PYTHON = (sys.executable, "-P", "-m")
_MODULES: dict[Kind, str] = {
    "tagger": "services.tagger",
    "launcher": "services.backend",
    "scheduler": "services.scheduler",
}


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """What the user asked for. Empty strings leave a choice to the service's own default."""

    engines: int = 4
    engine: Literal["emulated", "vllm"] = "emulated"
    schedulers: int = 2
    host: str = "127.0.0.1"
    port: int = 8000
    policy: str = ""
    profile: str = ""
    model: str = ""
    python: str = ""
    engine_args: str = ""
    start_timeout_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Process:
    """One process to keep alive. It writes `ready_file` when it serves."""

    name: str
    kind: Kind
    argv: tuple[str, ...]
    address: str
    ready_file: Path
    log: Path
    start_timeout_s: float
    port: int = 0  # that must be free again before a restart; 0: none


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """All processes in the order of their start, and the instances file's content."""

    endpoint: str
    processes: tuple[Process, ...]
    instances: tuple[dict[str, str], ...]

    def schedulers(self) -> tuple[Process, ...]:
        return tuple(p for p in self.processes if p.kind == "scheduler")

    def write_instances(self, run_dir: Path) -> None:
        """Where the schedulers of this plan read their engines from."""
        _instances_file(run_dir).write_text(json.dumps(list(self.instances), indent=1))


def longest_socket_name(options: ClusterOptions) -> str:
    return f"{_engine_name(options.engines)}.predictor.sock"


def plan_cluster(
    options: ClusterOptions, run_dir: Path, socket_dir: Path, ports: Sequence[int]
) -> ClusterPlan:
    """`ports` are for the engines and then for the schedulers, one each."""
    assert len(ports) == options.engines + options.schedulers
    tagger = _tagger(run_dir, socket_dir)
    launchers = [
        _launcher(options, index, port, run_dir, socket_dir)
        for index, port in enumerate(ports[: options.engines])
    ]
    schedulers = [
        _scheduler(options, index, port, run_dir, tagger.address)
        for index, port in enumerate(ports[options.engines :])
    ]
    instances = tuple(
        {
            "instance_id": _engine_name(index),
            "url": launcher.address,
            "predictor": _predictor_address(socket_dir, index),
        }
        for index, launcher in enumerate(launchers)
    )
    endpoint = _url(_reached_at(options.host), options.port)
    return ClusterPlan(endpoint, (tagger, *launchers, *schedulers), instances)


def _tagger(run_dir: Path, socket_dir: Path) -> Process:
    address = f"unix:{socket_dir / 'tagger.sock'}"
    flags = (f"--listen={address}",)
    return _process("tagger", "tagger", flags, address=address, run_dir=run_dir)


def _launcher(
    options: ClusterOptions, index: int, port: int, run_dir: Path, socket_dir: Path
) -> Process:
    name = _engine_name(index)
    engine_args = options.engine_args
    if options.engine == "emulated":  # engines of one cluster do not stumble in step
        engine_args = shlex.join(["--seed", str(index)]) + f" {engine_args}"
    flags = [
        f"--engine={options.engine}",
        f"--name={name}",
        f"--host={ENGINE_HOST}",
        f"--port={port}",
        f"--run-dir={run_dir}",
        f"--predictor-listen={_predictor_address(socket_dir, index)}",
        f"--engine-args={engine_args}",
        f"--ready-timeout-s={options.start_timeout_s}",
    ]
    if options.profile:
        flags.append(f"--profile={options.profile}")
    if options.model:
        of_engine = "model" if options.engine == "vllm" else "served-model-name"
        flags.append(f"--{of_engine}={options.model}")
    if options.python:
        flags.append(f"--python={options.python}")
    return _process(
        name,
        "launcher",
        flags,
        address=_url(ENGINE_HOST, port),
        run_dir=run_dir,
        port=port,
        start_timeout_s=options.start_timeout_s + SERVICE_START_TIMEOUT_S,
    )


def _scheduler(
    options: ClusterOptions, index: int, port: int, run_dir: Path, tagger: str
) -> Process:
    name = f"scheduler-{index}"
    flags = [
        f"--host={options.host}",
        f"--port={port}",
        f"--shared-port={options.port}",
        f"--instances={_instances_file(run_dir)}",
        f"--tagger={tagger}",
        f"--name={name}",
        f"--request-log={run_dir / f'{name}.requests.jsonl'}",
    ]
    if options.policy:
        flags.append(f"--policy={options.policy}")
    address = _url(_reached_at(options.host), port)
    return _process(name, "scheduler", flags, address=address, run_dir=run_dir, port=port)


def _process(
    name: str,
    kind: Kind,
    flags: Sequence[str],
    *,
    address: str,
    run_dir: Path,
    port: int = 0,
    start_timeout_s: float = SERVICE_START_TIMEOUT_S,
) -> Process:
    ready_file = run_dir / f"{name}.ready"
    argv = (*_PYTHON, _MODULES[kind], *flags, f"--ready-file={ready_file}")
    log = run_dir / f"{name}.log"
    return Process(name, kind, argv, address, ready_file, log, start_timeout_s, port)


def _engine_name(index: int) -> str:
    return f"engine-{index}"


def _predictor_address(socket_dir: Path, index: int) -> str:
    return f"unix:{socket_dir / f'{_engine_name(index)}.predictor.sock'}"


def _instances_file(run_dir: Path) -> Path:
    return run_dir / "instances.json"


def _reached_at(host: str) -> str:
    """The address at which a server that listens on `host` answers on this machine."""
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
