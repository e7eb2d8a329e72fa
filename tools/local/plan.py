"""The processes of a local cluster, and at which addresses they serve."""

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from foretell.config.cluster import Cluster, ClusterEngine
from foretell.config.layout import Layout
from foretell.services.process.frames import predictor_socket
from foretell.services.process.hang import HangLimits
from foretell.services.process.keeper import Program, Serves
from foretell.services.process.probe import http_get, is_up
from foretell.tools import envoy

Kind = Literal["tagger", "launcher", "predictor", "scheduler", "batch", "provisioner", "envoy"]

ENGINE_HOST = "127.0.0.1"  # only schedulers reach engines
_START_TIMEOUT_S = 60.0
_PROBE_TIMEOUT_S = 2.0
# -P: nothing is imported from a folder `services` in the user's working directory.
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
        """Whether a provisioner decides which of the launchers run."""
        return self.layout.cluster.provisioning.enabled


def longest_socket_name(cluster: Cluster) -> str:
    """Longest name of the sockets in the cluster's `run_dir`."""
    predictors = [name for engine in cluster.engine_list() for name in engine.rank_names]
    pickers = [f"{name}.picker.sock" for name in cluster.scheduler_names()]
    return max([*map(predictor_socket, predictors), *pickers], key=len)


def _answering(url: str) -> Serves:
    """A check whether anything answers at `url` in time."""

    async def answers() -> bool:
        with contextlib.suppress(OSError):
            await http_get(url, HangLimits().answer_s)
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
    """The processes of a `placed` cluster that `file` holds; logs and ready files go to `run_dir`.

    `scheduler_ports` has one port for each replica.
    """
    layout = Layout(cluster)
    make = _Maker(layout, file, run_dir, restart)
    section = cluster.schedulers
    urls = [section.near_url(port) for port in scheduler_ports]
    processes = [
        make.process("tagger", "tagger", layout.tagger_address()),
        *map(make.launcher, cluster.engine_list()),
        *map(make.scheduler, cluster.scheduler_names(), scheduler_ports, urls),
    ]
    if cluster.batches.folder:
        processes.append(make.process("batch", "batch", layout.batches_address()))
    if cluster.provisioning.enabled:
        flag = f"--schedulers={','.join(urls)}"
        processes.append(make.process("provisioner", "provisioner", "", flag))
    if section.envoy:
        processes.append(make.envoy())
    return ClusterPlan(section.near_url(section.port), tuple(processes), layout)


@dataclass(frozen=True, slots=True)
class _Maker:
    """Makes the processes of a cluster."""

    layout: Layout
    file: Path
    run_dir: Path
    restart: bool

    def process(
        self,
        kind: Kind,
        name: str,
        address: str,
        *flags: str,
        timeout_s: float = 0.0,
        port: int = 0,
        answers: Serves | None = None,
    ) -> Process:
        """A process of Foretell; `timeout_s` is added to the time that it has to start."""
        ready_file = self.run_dir / f"{name}.ready"
        own = (f"--cluster={self.file}", f"--ready-file={ready_file}", *flags)
        program = Program(
            name,
            (*_PYTHON, _MODULES[kind], *own),
            self.run_dir / f"{name}.log",
            ready_file,
            _START_TIMEOUT_S + timeout_s,
            port=port,
            at_end="restart" if self.restart else "leave",
            answers=answers,
        )
        return Process(kind, address, program)

    def launcher(self, engine: ClusterEngine) -> Process:
        """An engine with its predictor, or only the predictor of an engine started elsewhere."""
        if not engine.section.is_started:
            address = self.layout.predictor_address(engine)
            return self.process("predictor", engine.name, address)
        flags = [f"--name={engine.name}", f"--run-dir={self.run_dir}"]
        if not self.restart:
            flags.append("--no-restart")
        timeout_s, port = engine.section.start_timeout_s, engine.port
        address = self.layout.engine_url(engine)
        return self.process(
            "launcher", engine.name, address, *flags, timeout_s=timeout_s, port=port
        )

    def scheduler(self, name: str, port: int, url: str) -> Process:
        """A replica with a port of its own."""
        flags = [f"--name={name}", f"--port={port}"]
        if self.layout.cluster.observability.request_log:
            flags.append(f"--request-log={self.run_dir / f'{name}.requests.jsonl'}")
        answers = _answering(f"{url}/health")
        return self.process("scheduler", name, url, *flags, port=port, answers=answers)

    def envoy(self) -> Process:
        """Envoy, which writes no ready file: its health page is probed instead."""
        config = self.run_dir / "envoy.yaml"
        config.write_text(envoy.configuration(self.layout), encoding="utf-8")
        section = self.layout.cluster.schedulers
        url = section.near_url(section.port)
        made = self.process("envoy", "envoy", url)
        argv = (envoy.program(), "-c", str(config), *envoy.flags(self.layout))
        program = replace(
            made.program,
            argv=(*_PYTHON, _MODULES["envoy"], *argv),
            serves=partial(is_up, f"{url}/health", _PROBE_TIMEOUT_S),
        )
        return replace(made, program=program)
