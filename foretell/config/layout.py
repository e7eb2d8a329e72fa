"""The addresses of a cluster, and the settings of each of its processes.

Names, ports and sockets are derived from the cluster file, so that none of them is written twice.
"""

import json
import os
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from foretell.config.cluster import Cluster, ClusterEngine, load_cluster, parse_cluster
from foretell.config.marks import ClusterError
from foretell.config.sections import (
    BatchOptions,
    ProvisionOptions,
    SchedulerOptions,
    TaggerOptions,
    TrafficOptions,
    bracketed,
)

Service = Literal[
    "scheduler", "predictor", "tagger", "provisioner", "batch", "emulator", "launcher"
]
Values = dict[str, Any]
T = TypeVar("T")

EMULATED_PROFILE = "A30/Llama-2-7b-hf"
"""Profile of emulated engines whose section names none."""
_CO_SCHEDULER = "foretell.services.backend.vllm.cosched.scheduler.CoScheduler"
INSTANCES_FILE = "instances.json"
"""File with the engines of a cluster where they come and go, in the provisioner's folder."""
ENGINES_FILE = "engines.json"
"""File with the engines that such a cluster is to run, beside `INSTANCES_FILE`."""
CONTAINER_RUN_DIR = "/run/foretell"
CONTAINER_FILES = "/etc/foretell"
CONTAINER_BATCHES = "/var/lib/foretell/batches"
DOCKER_SOCKET = "/var/run/docker.sock"
CONTAINER_PORT = 8000
CONTAINER_HTTPS_PORT = 8443
CONTAINER_GRPC_PORT = 50051


@dataclass(frozen=True, slots=True)
class Layout:
    """The addresses of a cluster, for processes that run on its hosts or in containers there."""

    cluster: Cluster
    contained: bool = False
    """Whether each process has its own container, which has the name of the process."""

    @property
    def run_dir(self) -> str:
        """Folder of the sockets."""
        if self.contained:
            return CONTAINER_RUN_DIR
        if self.cluster.run_dir:
            return self.cluster.run_dir
        of_user = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
        return f"{of_user}/foretell-{self.cluster.name}-{os.getuid()}"

    @property
    def several_hosts(self) -> bool:
        """Whether calls between the services cross hosts, through TCP instead of unix sockets."""
        return len(self.cluster.host_names()) > 1

    @property
    def front_host(self) -> str:
        """Host of the schedulers."""
        return self.cluster.host_names()[0]

    @property
    def tagger_host(self) -> str:
        """Host of the tagger."""
        return self.cluster.tagger.host or self.front_host

    def engine_url(self, engine: ClusterEngine) -> str:
        """Where schedulers reach an engine."""
        if engine.section.url:
            return engine.section.url.rstrip("/")
        if self.contained and engine.host == self.front_host:
            return f"http://{engine.name}:{CONTAINER_PORT}"
        return f"http://{bracketed(engine.host or '127.0.0.1')}:{engine.port}"

    def predictor_address(self, engine: ClusterEngine, rank_name: str = "") -> str:
        """Where schedulers reach an engine's predictor, or that of one of its ranks."""
        if not self.several_hosts:
            return f"unix:{self.run_dir}/{rank_name or engine.name}.predictor.sock"
        if self.contained and engine.host == self.front_host:
            return f"{predictor_name(engine.name)}:{CONTAINER_GRPC_PORT}"
        rank = engine.rank_names.index(rank_name) if rank_name else 0
        return f"{bracketed(engine.host)}:{engine.predictor_port + rank}"

    def tagger_address(self) -> str:
        """Where schedulers reach the tagger."""
        if not self.several_hosts:
            return f"unix:{self.run_dir}/tagger.sock"
        if self.contained and self.tagger_host == self.front_host:
            return f"tagger:{CONTAINER_GRPC_PORT}"
        return f"{bracketed(self.tagger_host)}:{self.cluster.tagger.port}"

    def batches_address(self) -> str:
        """Where schedulers reach the batch service, on the same host; "" where there is none."""
        return f"unix:{self.run_dir}/batch.sock" if self.cluster.batches.folder else ""

    def scheduler_urls(self) -> tuple[str, ...]:
        """Where the batch service reaches the schedulers."""
        section = self.cluster.schedulers
        if self.contained:
            return tuple(
                f"http://{each}:{CONTAINER_PORT}" for each in self.cluster.scheduler_names()
            )
        return (section.near_url(section.port),)

    def picker_address(self, scheduler: str) -> str:
        """Where an Envoy on the same host asks a scheduler replica."""
        return f"unix:{self.run_dir}/{scheduler}.picker.sock"

    def snapshot_endpoint(self, engine: ClusterEngine) -> str:
        """Where an engine publishes its snapshots for its predictor, on the same host."""
        return f"shm://{self.run_dir}/{engine.name}.snapshots"

    def instances(self) -> list[dict[str, str | int]]:
        """The engines as schedulers list them; each data-parallel rank is an instance.

        ClusterError in containers for ranks, or for engines that are not started with the cluster.
        """
        for section in self.cluster.engines if self.contained else ():
            if section.ranks > 1 or not section.is_started:
                raise ClusterError("engines with `ranks` or `url` run outside containers")
        return [
            {
                "instance_id": name,
                "url": self.engine_url(engine),
                "predictor": self.predictor_address(engine, name),
                "model": served_name(engine),
                **({"rank": rank} if engine.section.ranks > 1 else {}),
                **({} if engine.section.is_started else {"kind": engine.section.kind}),
            }
            for engine in self.cluster.engine_list()
            for rank, name in enumerate(engine.rank_names)
        ]

    @property
    def members(self) -> str:
        """Where schedulers find the engines: the list, or the file of a provisioner."""
        if self.cluster.provisioning.enabled:
            return f"{self.provisioner_folder}/{INSTANCES_FILE}"
        return json.dumps(self.instances())

    def listen(self, address: str) -> str:
        """Where a predictor or tagger listens that other processes reach at `address`."""
        inside = self.contained and self.several_hosts
        return f"0.0.0.0:{CONTAINER_GRPC_PORT}" if inside else address

    def engine(self, name: str) -> ClusterEngine:
        """The engine of that name, the only one for ""; ClusterError that lists them otherwise."""
        engines = self.cluster.engine_list()
        if not name and len(engines) == 1:
            return engines[0]
        return _chosen(name, {engine.name: engine for engine in engines}, "engine")

    def file(self, path: str, setting: str) -> str:
        """Where a process finds the file or folder that the cluster file names for a setting."""
        return f"{CONTAINER_FILES}/{setting}" if path and self.contained else path

    def _files(self, section: Any, *settings: str) -> Values:
        return {setting: self.file(getattr(section, setting), setting) for setting in settings}

    def _folder(self, section: Any, setting: str) -> Values:
        """The setting of a model's folder, which may also be a name."""
        named = getattr(section, setting) in ("shipped", "none")
        return {} if named else self._files(section, setting)

    def values(self, service: Service, name: str) -> Values:
        """The settings of the process `name` by their names; "" where there is only one."""
        match service:
            case "scheduler":
                return self.scheduler(name)
            case "predictor" | "emulator" | "launcher":
                return getattr(self, service)(self.engine(name))  # type: ignore[no-any-return]
            case _:
                return getattr(self, service)()  # type: ignore[no-any-return]

    def scheduler(self, name: str) -> Values:
        """Settings of a scheduler replica."""
        cluster = self.cluster
        names = cluster.scheduler_names()
        section = cluster.schedulers
        chosen = _chosen(name or names[0], {known: known for known in names}, "scheduler")
        values = {
            **_options(section, SchedulerOptions),
            **cluster.targets.model_dump(),
            **self._shared(),
            "policy": cluster.policy.name,
            "policy_parameters": cluster.policy.parameters,
            "name": chosen,
            "instances": self.members,
            "tagger": self.tagger_address(),
            "batches": self.batches_address(),
            **self._files(section, "tokenizer", "api_keys_file", "engine_api_key_file"),
            **self._files(section, "https_certificate", "https_key"),
            **self._folder(section, "length_model"),
        }
        if cluster.provisioning.enabled:  # a request may wait until an engine has been started
            longest_s = cluster.provisioning.give_up_s
            values["engine_wait_s"] = max(section.engine_wait_s, longest_s)
        if section.https_port:
            outside = f"{bracketed(section.listen)}:{section.https_port}"
            inside = f"0.0.0.0:{CONTAINER_HTTPS_PORT}"
            values["https_listen"] = inside if self.contained else outside
        if section.envoy:
            values["picker"] = self.picker_address(chosen)
        if self.contained:
            return values
        if cluster.observability.request_log:
            values["request_log"] = f"{self.run_dir}/{chosen}.requests.jsonl"
        # The endpoint's port is Envoy's, where there is one.
        port = {} if section.envoy else {"host": section.plain_listen, "shared_port": section.port}
        return values | port

    def tagger(self) -> Values:
        """Settings of the tagger."""
        section = self.cluster.tagger
        values = _options(section, TaggerOptions) | self._shared()
        values |= self._folder(section, "model") | self._files(section, "checkpoint")
        return values | {"listen": self.listen(self.tagger_address())}

    def provisioner(self) -> Values:
        """Settings of the provisioner."""
        section = self.cluster.provisioning
        driver = "docker" if self.contained else "process"
        return {
            **_options(section, ProvisionOptions),
            **self._shared(),
            "folder": self.provisioner_folder,
            "driver": driver if section.enabled else "advisory",
            "instances": json.dumps(self.instances()),
            "models": sorted({served_name(engine) for engine in self.cluster.engine_list()}),
            "batches": self.batches_address(),
        }

    @property
    def provisioner_folder(self) -> str:
        """Folder of the provisioner's state."""
        return f"{self.run_dir}/provisioner"

    @property
    def profile(self) -> str:
        """The GPU profile by which batches are ordered, that of the first engine that has one."""
        return next((each.profile for each in self.cluster.engines if each.profile), "")

    def batch(self) -> Values:
        """Settings of the batch service; ClusterError if the cluster has none."""
        if not self.cluster.batches.folder:
            raise ClusterError("batches.folder: the cluster has no batch service")
        return {
            **_options(self.cluster.batches, BatchOptions),
            **self._shared(),
            "folder": CONTAINER_BATCHES if self.contained else self.cluster.batches.folder,
            "listen": self.batches_address(),
            "schedulers": ",".join(self.scheduler_urls()),
            "profile": self.profile,
            "ttft_target_ms": self.cluster.targets.ttft_target_ms,
        }

    def predictor(self, engine: ClusterEngine) -> Values:
        """Settings of an engine's sidecar."""
        hears = {"snapshot_endpoint": self.snapshot_endpoint(engine)}
        if not engine.section.is_started:
            args = shlex.join(shlex.split(engine.model.args) + shlex.split(engine.section.args))
            hears = {"engine_url": self.engine_url(engine), "engine_args": args}
        return self._shared() | {
            "name": engine.name,
            "listen": self.listen(self.predictor_address(engine)),
            **hears,
            "profile": engine_profile(engine),
        }

    def emulator(self, engine: ClusterEngine) -> Values:
        """Settings of an emulated engine."""
        return {
            "name": engine.name,
            "host": engine.host or "127.0.0.1",
            "port": engine.port,
            "snapshot_endpoint": self.snapshot_endpoint(engine),
            "profile": engine_profile(engine),
            "model_name": engine.model_name,
            **self._logs(),
        } | _flag_values(engine_args(engine))

    def launcher(self, engine: ClusterEngine) -> Values:
        """Settings of the launcher, which starts an engine with its sidecar."""
        return {
            "engine": engine.section.kind,
            "name": engine.name,
            "host": engine.host or "127.0.0.1",
            "port": engine.port,
            "run_dir": self.run_dir,
            "predictor_listen": ",".join(
                self.predictor_address(engine, name) for name in engine.rank_names
            ),
            "ranks": engine.section.ranks,
            "profile": engine.section.profile,
            "model": engine.model.path or engine.model_name,
            "served_model_name": engine.model_name,
            "python": engine.section.python,
            "engine_args": shlex.join(engine_args(engine)),
            "gpus": ",".join(map(str, engine.gpus)),
            "ready_timeout_s": engine.section.start_timeout_s,
            "log_format": self.cluster.observability.log_format,
            **self._files(self.cluster.schedulers, "engine_api_key_file"),
        }

    def _shared(self) -> Values:
        files = self._files(self.cluster.traffic, *TrafficOptions.model_fields)
        return files | self._logs()

    def _logs(self) -> Values:
        section = self.cluster.observability
        return {"log_level": section.log_level, "log_format": section.log_format}


def values_from(path: str, service: Service, name: str) -> Values:
    """The settings that the cluster file at `path` has for the process `name` of `service`.

    ClusterError if the file is wrong or has no such process.
    """
    layout = Layout(load_cluster(path))
    values = layout.values(service, name)
    comes_and_goes = layout.cluster.provisioning.enabled
    if service in ("scheduler", "provisioner") and not comes_and_goes:
        values["instances"] = str(Path(path).absolute())  # read again when an engine is added
    return values


def parse_instances(text: str, folder: Path) -> list[dict[str, str | int]]:
    """The engines in the text of a cluster file that is in `folder`, as `Layout.instances`.

    ClusterError if it is wrong.
    """
    return Layout(parse_cluster(text, "cluster file", folder)).instances()


def engine_args(engine: ClusterEngine) -> list[str]:
    """Further flags of an engine: its model's, then its own."""
    args = shlex.split(engine.model.args) + shlex.split(engine.section.args)
    if engine.section.kind == "vllm" and engine.section.gpus > 1:
        args = [f"--tensor-parallel-size={engine.section.gpus}", *args]
    if engine.section.ranks > 1:
        ranks = engine.section.ranks  # several nodes may have more in all: later flags override
        args = [f"--data-parallel-size={ranks}", f"--data-parallel-size-local={ranks}", *args]
    if engine.section.offline:
        emulated = engine.section.kind == "emulated"
        args = ["--offline=true" if emulated else f"--scheduler-cls={_CO_SCHEDULER}", *args]
    return args


def engine_profile(engine: ClusterEngine) -> str:
    """The GPU profile that an engine runs by or that its predictor starts from."""
    default = EMULATED_PROFILE if engine.section.kind == "emulated" else ""
    return engine.section.profile or default


def served_name(engine: ClusterEngine) -> str:
    """The name of its model that an engine serves."""
    return engine.model_name or engine_profile(engine).partition("/")[2]


def predictor_name(engine: str) -> str:
    """Name of the container of an engine's predictor."""
    return f"{engine}-predictor"


def _options(section: Any, options: type) -> Values:
    """Those fields of a section that its processes take as they are."""
    return section.model_dump(include=set(options.model_fields))  # type: ignore[attr-defined,no-any-return]


def _chosen(name: str, known: Mapping[str, T], what: str) -> T:
    if name in known:
        return known[name]
    asked = f"no {what} is called {name!r}" if name else f"say with --name which {what} is meant"
    raise ClusterError(f"{asked}; the cluster has {', '.join(known)}")


def _flag_values(args: list[str]) -> Values:
    """`--max-num-seqs 8 --speedup=2` as values by the settings' names."""
    values = {}
    pending = list(reversed(args))
    while pending:
        flag, equals, value = pending.pop().partition("=")
        if not flag.startswith("--") or not (equals or pending):
            raise ClusterError(f"flags of an emulated engine must be --NAME VALUE, not {flag!r}")
        values[flag[2:].replace("-", "_")] = value if equals else pending.pop()
    return values
