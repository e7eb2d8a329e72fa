"""The processes of a local cluster, and at which addresses they serve."""

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from foretell.config.cluster import Cluster, ClusterEngine
from foretell.config.layout import Layout
from foretell.services.process.hang import ANSWER_S
from foretell.services.process.keeper import AtEnd, Program, Serves
from foretell.services.process.probe import http_get
from foretell.tools import envoy

Kind = Literal["tagger", "launcher", "predictor", "scheduler", "batch", "provisioner", "envoy"]

ENGINE_HOST = "127.0.0.1"  # engines are the schedulers' own business
_START_TIMEOUT_S = 60.0
_PROBE_TIMEOUT_S = 2.0
# -P: a folder `services` where the user happens to stand is not ours.
_PYTHON = (sys.executable, "-P", "-m")
_MODULES: dict[Kind, str] = {
    "tagger": "foretell.services.tagger",
    "launcher": "foretell.services.backend",
    "predictor": "foretell.services.predictor",
    "scheduler": "foretell.services.scheduler",
    "provisioner": "foretell.services.provisioner",
    "batch": "foretell.services.batch",
    "envoy": "foretell.services.process.exec_child",
}


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the cluster and where it serves."""

    kind: Kind
    address: str
    program: Program


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """All processes, and the engines that the launchers among them run."""

    endpoint: str
    processes: tuple[Process, ...]
    layout: Layout

    @property
    def comes_and_goes(self) -> bool:
        """Whether a provisioner says which of the launchers run."""
        return self.layout.cluster.provisioning.enabled


def longest_socket_name(cluster: Cluster) -> str:
    """Longest name of the sockets in the cluster's `run_dir`."""
    names = [f"{engine.name}.predictor.sock" for engine in cluster.engine_list()]
    return max([*names, *(f"{name}.picker.sock" for name in cluster.scheduler_names())], key=len)


def _answering(url: str) -> Serves:
    """Tells whether anything answers there in time."""

    async def answers() -> bool:
        with contextlib.suppress(OSError):
            await http_get(url, ANSWER_S)
            return True
        return False

    return answers


def placed(cluster: Cluster, sockets: Path, port: int, engine_ports: Sequence[int]) -> Cluster:
    """The cluster with its sockets in a folder, and a port for each engine that names none."""
    free = iter(engine_ports)
    sections = []
    for section in cluster.engines:
        own = [next(free) for _ in range(section.engines)]
        sections.append(section.model_copy(update={"port": section.port or own[0]}))
    update = {
        "engines": sections,
        "run_dir": str(sockets),
        "schedulers": cluster.schedulers.model_copy(update={"port": port}),
    }
    return cluster.model_copy(update=update)


def plan_cluster(
    cluster: Cluster, file: Path, run_dir: Path, scheduler_ports: Sequence[int], *, restart: bool
) -> ClusterPlan:
    """What runs a `placed` cluster that `file` holds; logs and ready files go to `run_dir`.

    `scheduler_ports` are the replicas' own, one each.
    """
    layout = Layout(cluster)
    at_end: AtEnd = "restart" if restart else "leave"

    def process(
        kind: Kind,
        name: str,
        address: str,
        *flags: str,
        timeout_s: float = 0.0,
        port: int = 0,
        answers: Serves | None = None,
    ) -> Process:
        ready_file = run_dir / f"{name}.ready"
        own = (f"--cluster={file}", f"--ready-file={ready_file}", *flags)
        program = Program(
            name,
            (*_PYTHON, _MODULES[kind], *own),
            run_dir / f"{name}.log",
            ready_file,
            _START_TIMEOUT_S + timeout_s,
            port=port,
            at_end=at_end,
            answers=answers,
        )
        return Process(kind, address, program)

    def launcher(engine: ClusterEngine) -> Process:
        if not engine.section.is_started:
            return process("predictor", engine.name, layout.predictor_address(engine))
        flags = [f"--name={engine.name}", f"--run-dir={run_dir}"]
        if not restart:
            flags.append("--no-restart")
        timeout_s, port = engine.section.start_timeout_s, engine.port
        address = layout.engine_url(engine)
        return process("launcher", engine.name, address, *flags, timeout_s=timeout_s, port=port)

    def scheduler(name: str, port: int) -> Process:
        flags = [f"--name={name}", f"--port={port}"]
        if cluster.observability.request_log:
            flags.append(f"--request-log={run_dir / f'{name}.requests.jsonl'}")
        url = cluster.schedulers.near_url(port)
        answers = _answering(f"{url}/health")
        return process("scheduler", name, url, *flags, port=port, answers=answers)

    def provisioner() -> Process:
        urls = ",".join(cluster.schedulers.near_url(port) for port in scheduler_ports)
        return process("provisioner", "provisioner", "", f"--schedulers={urls}")

    def front() -> Process:
        config = run_dir / "envoy.yaml"
        argv = (envoy.program(), "-c", str(config), *envoy.flags(layout))
        config.write_text(envoy.configuration(layout), encoding="utf-8")
        url = cluster.schedulers.near_url(cluster.schedulers.port)

        async def serves() -> bool:
            with contextlib.suppress(OSError):
                return (await http_get(f"{url}/health", _PROBE_TIMEOUT_S))[0] == 200
            return False

        program = Program(
            "envoy",
            (*_PYTHON, _MODULES["envoy"], *argv),
            run_dir / "envoy.log",
            run_dir / "envoy.ready",  # which it does not write
            _START_TIMEOUT_S,
            at_end=at_end,
            serves=serves,
        )
        return Process("envoy", url, program)

    processes = (
        process("tagger", "tagger", layout.tagger_address()),
        *map(launcher, cluster.engine_list()),
        *map(scheduler, cluster.scheduler_names(), scheduler_ports),
        *([process("batch", "batch", layout.batches_address())] if cluster.batches.folder else []),
        *([provisioner()] if cluster.provisioning.enabled else []),
        *([front()] if cluster.schedulers.envoy else []),
    )
    return ClusterPlan(cluster.schedulers.near_url(cluster.schedulers.port), processes, layout)
