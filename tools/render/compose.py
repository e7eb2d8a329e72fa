"""Compose files of a cluster, one for each host."""

import ipaddress
import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic_settings import BaseSettings

from foretell.config import (
    BatchSettings,
    Cluster,
    EmulatorSettings,
    Layout,
    PredictorSettings,
    ProvisionerSettings,
    SchedulerSettings,
    TaggerSettings,
)
from foretell.config.cluster import ClusterEngine
from foretell.config.layout import (
    CONTAINER_BATCHES,
    CONTAINER_FILES,
    CONTAINER_GRPC_PORT,
    CONTAINER_HTTPS_PORT,
    CONTAINER_PORT,
    CONTAINER_RUN_DIR,
    DOCKER_SOCKET,
    engine_args,
    predictor_name,
)
from foretell.config.sections import bracketed
from foretell.services.process.frames import frames_port
from foretell.tools.dumped import dump
from foretell.tools.envoy import configuration, flags
from foretell.tools.render.images import Images, is_checkout
from foretell.tools.render.secrets import Secrets, refusal
from foretell.tools.render.watching import (
    METRICS_PORT,
    METRICS_PORTS_ABOVE,
    scraped,
    services_that_watch,
    shipped,
)

_ENVOY_FILE = "envoy/envoy.yaml"
_SHARED = "deploy/observability"
"""The folder that Prometheus and Grafana read, in a checkout or, without one, in the output."""
_HEADER = """\
# Made by `foretell render compose --cluster {cluster}`: change that file and run it again.
#
{commands}
#
# .env may set what is written ${{VARIABLE:-DEFAULT}} here.

"""
_START = "#   docker compose -f {name} up --build --detach --wait"
_START_PROVISIONED = """\
#   docker compose -f {name} --profile engines create --build
#   docker compose -f {name} --profile provisioner up --build --detach --wait"""
_Service = dict[str, Any]

_OVERRIDABLE = {"policy": "POLICY", "profile": "PROFILE", "log_level": "LOG_LEVEL"}
"""Settings that the file .env overrides, and their variables there."""


def render(cluster: Cluster, cluster_file: Path, output: Path, source: Path) -> dict[str, str]:
    """The contents of all files for a cluster, by their paths in the output folder.

    `source` is a checkout of this project, from which images are built. If it is none, images are
    only named, and the files that Prometheus and Grafana read are included.
    """
    found: dict[str, str] = {}
    cluster = cluster.with_places()
    hosts = cluster.host_names()
    stem = cluster_file.stem.removeprefix("cluster").removeprefix(".")
    suffix = f".{stem}" if stem else ""
    for host in hosts:
        name = f"docker-compose{suffix}{f'.{host}' if len(hosts) > 1 else ''}.yml"
        compose = _Compose(cluster, host, output.absolute(), source.absolute(), suffix)
        start = _START_PROVISIONED if cluster.provisioning.enabled else _START
        values = {"cluster": _relative(cluster_file, output), "commands": start.format(name=name)}
        found[name] = _HEADER.format(**values) + dump(compose.content())
    layout = Layout(cluster, contained=True)
    header = f"# Made with {next(iter(found))} by `foretell render compose`.\n"
    if cluster.schedulers.envoy:
        found[_ENVOY_FILE] = header + configuration(layout)
    if cluster.observability.prometheus_port:
        found[f"prometheus{suffix}.yml"] = header + dump(scraped(layout))
        if not is_checkout(source):
            found |= {f"{_SHARED}/{name}": text for name, text in shipped()}
    return found


class _Compose:
    """The compose file of one host."""

    def __init__(
        self, cluster: Cluster, host: str, output: Path, source: Path, suffix: str
    ) -> None:
        self._cluster = cluster
        self._suffix = suffix
        self._layout = Layout(cluster, contained=True)
        self._host = host
        self._output = output
        self._source = source
        context = _relative(source, output) if is_checkout(source) else ""
        self._images = Images(cluster, context)
        self._engines = [engine for engine in cluster.engine_list() if engine.host == host]
        self._secrets = Secrets(self._layout, self._relative)

    def content(self) -> dict[str, Any]:
        """The whole file."""
        services: dict[str, _Service] = {}
        in_front = self._host == self._layout.front_host
        if in_front:
            for index, name in enumerate(self._cluster.scheduler_names()):
                services[name] = self._scheduler(name, index)
            if self._cluster.schedulers.envoy:
                services["envoy"] = self._envoy()
            if self._cluster.batches.folder:
                services["batch"] = self._batch()
            if self._cluster.provisioning.enabled:
                services["provisioner"] = self._provisioner()
        if self._host == self._layout.tagger_host:
            services["tagger"] = self._tagger()
        for engine in self._engines:
            vllm = engine.section.kind == "vllm"
            own = {
                engine.name: self._vllm(engine) if vllm else self._emulator(engine),
                predictor_name(engine.name): self._predictor(engine),
            }
            # With a provisioner, Compose does not start them.
            when = {"profiles": ["engines"]} if self._cluster.provisioning.enabled else {}
            # A container with a name is not scaled: two would share an identity and sockets.
            services |= {
                name: {"container_name": f"${{COMPOSE_PROJECT_NAME}}-{name}", **service, **when}
                for name, service in own.items()
            }
        volumes: dict[str, Any] = {"run": {}}
        if any(engine.section.kind == "vllm" for engine in self._engines):
            volumes["models"] = {}
        if "batch" in services:
            volumes["batches"] = {}
        if in_front and self._cluster.observability.prometheus_port:
            port = self._cluster.observability.prometheus_port
            folder = self._source if is_checkout(self._source) else self._output
            shared = self._relative(str(folder / _SHARED))
            watching = services_that_watch(port, shared, f"./prometheus{self._suffix}.yml")
            services |= {
                name: {**_COMMON, **self._named_hosts(), **service}
                for name, service in watching.items()
            }
            volumes |= {name: {} for name in watching}
        return {
            "name": self._cluster.name,
            "services": services,
            "networks": {"outside": {}, "inside": {"internal": True}},
            "volumes": volumes,
            "secrets": self._secrets.declared,
        }

    def _scheduler(self, name: str, index: int) -> _Service:
        section = self._cluster.schedulers
        values = self._layout.scheduler(name)
        port = f"${{SCHEDULER_{index}_PORT:-{section.port + index}}}"
        service = self._service("scheduler", values)
        for setting in ("api_keys_file", "engine_api_key_file"):
            service["environment"][f"FORETELL_SCHEDULER_{setting.upper()}"] += refusal(setting)
        # Only the order of start: a scheduler serves with the engines, predictors and tagger that
        # are up. If it waited for all, one engine that cannot start would block the endpoint.
        others = ["tagger"] if self._host == self._layout.tagger_host else []
        if self._cluster.provisioning.enabled:
            after: Any = {name: {"condition": "service_started"} for name in others}
            # It writes the list of engines. Without its profile Compose leaves it out.
            after["provisioner"] = {"condition": "service_healthy", "required": False}
        else:
            after = others + [predictor_name(engine.name) for engine in self._engines]
        if section.envoy:  # clients reach only Envoy
            return service | {"depends_on": after}
        bind = f"${{BIND:-{section.listen}}}"
        ports = [f"{bind}:{port}:{CONTAINER_PORT}"]
        if section.https_port:
            own = f"${{SCHEDULER_{index}_HTTPS_PORT:-{section.https_port + index}}}"
            plain = f"{section.plain_listen}:{port}:{CONTAINER_PORT}"
            ports = [plain, f"{bind}:{own}:{CONTAINER_HTTPS_PORT}"]
        return service | {
            "networks": ["outside", "inside"],
            "ports": ports,
            "depends_on": after,
        }

    def _envoy(self) -> _Service:
        section = self._cluster.schedulers
        config = f"{CONTAINER_FILES}/envoy.yaml"
        command = ["envoy", "-c", config, *flags(self._layout)]
        return {**_COMMON, **self._images.envoy(), **_CONFINED} | {
            "command": command,
            "stop_grace_period": "30s",
            "networks": ["outside", "inside"],
            "ports": [f"${{BIND:-{section.listen}}}:${{PORT:-{section.port}}}:{CONTAINER_PORT}"],
            "volumes": [f"run:{CONTAINER_RUN_DIR}", f"./{_ENVOY_FILE}:{config}:ro"],
            "depends_on": list(self._cluster.scheduler_names()),
        }

    def _tagger(self) -> _Service:
        return self._service("tagger", self._layout.tagger(), port=self._cluster.tagger.port)

    def _batch(self) -> _Service:
        """The batch service. Its folder is a volume, whatever its name outside containers."""
        service = self._service("batch", self._layout.batch())
        return service | {
            "volumes": [*service["volumes"], f"batches:{CONTAINER_BATCHES}"],
            "depends_on": list(self._cluster.scheduler_names()),
        }

    def _provisioner(self) -> _Service:
        """The provisioner. With Docker's socket it controls this host, so it needs a profile."""
        values = self._layout.provisioner()
        values["schedulers"] = ",".join(self._layout.scheduler_urls())
        service = self._service("provisioner", values)
        service["environment"] |= {
            "FORETELL_PROVISIONER_DRIVER_TARGET": "${COMPOSE_PROJECT_NAME}",
        }
        socket = f"${{DOCKER_SOCKET:-{DOCKER_SOCKET}}}:{DOCKER_SOCKET}"
        return service | {
            "profiles": ["provisioner"],
            "volumes": [*service["volumes"], socket],
            "group_add": ["${DOCKER_GID:-0}"],
        }

    def _predictor(self, engine: ClusterEngine) -> _Service:
        values = self._layout.predictor(engine)
        service = self._service("predictor", values, port=engine.predictor_port)
        return service | {"depends_on": [engine.name]}

    def _emulator(self, engine: ClusterEngine) -> _Service:
        values = self._layout.emulator(engine)
        del values["host"], values["port"]  # the image has its own
        service = self._service("backend.emulator", values)
        return service | self._reached_by_others(engine.port, CONTAINER_PORT)

    def _vllm(self, engine: ClusterEngine) -> _Service:
        path = engine.model.path or engine.model_name
        mounts = []
        if Path(path).is_absolute():
            mounts = [f"{self._relative(path)}:{CONTAINER_FILES}/model:ro"]
            model, name = f"{CONTAINER_FILES}/model", _escaped(engine.model_name)
        elif len(self._cluster.models) == 1:
            model = f"${{MODEL:-{_escaped(path)}}}"
            own_name = engine.model_name if engine.model_name != path else model
            name = f"${{SERVED_MODEL_NAME:-{own_name}}}"
        else:
            model, name = _escaped(path), _escaped(engine.model_name)
        args = _escaped(shlex.join(engine_args(engine)))
        command = (model, f"--served-model-name {name}", args, "${VLLM_ARGS:-}")
        devices = {
            "driver": "nvidia",
            "device_ids": [str(gpu) for gpu in engine.gpus],
            "capabilities": ["gpu"],
        }
        service = {**_COMMON, **self._images.vllm()} | {
            "command": " ".join(filter(None, command)),
            "environment": {
                "FORETELL_PLUGIN_SNAPSHOT_ENDPOINT": self._layout.snapshot_endpoint(engine),
                "FORETELL_PLUGIN_INSTANCE_ID": engine.name,
                "VLLM_API_KEY_FILE": self._secrets.path("engine_api_key_file"),
                "HF_TOKEN_PATH": f"{CONTAINER_FILES}/hf_token_file",
            },
            "secrets": self._secrets.mounted(["engine_api_key_file", "hf_token_file"]),
            # `outside` to fetch weights.
            "networks": ["inside", "outside"],
            # vLLM runs its engine in processes of its own, which talk through shared memory.
            "init": True,
            "shm_size": "8g",
            "stop_grace_period": "60s",
            "volumes": [
                f"run:{CONTAINER_RUN_DIR}",
                "models:/home/foretell/.cache/huggingface",
                *mounts,
            ],
            "deploy": {"resources": {"reservations": {"devices": [devices]}}},
        }
        return service | self._reached_by_others(engine.port, CONTAINER_PORT)

    def _service(self, package: str, values: Mapping[str, Any], *, port: int = 0) -> _Service:
        """A service of Foretell; `port` is its gRPC port on the host, if other hosts call it."""
        settings, memory, grace_s = _OURS[package]
        service = {**_COMMON, **self._images.services(), **_CONFINED, **self._named_hosts()} | {
            "command": ["python", "-m", f"foretell.services.{package}"],
            "environment": self._environment(settings, values),
            "networks": ["inside"],
            "volumes": [f"run:{CONTAINER_RUN_DIR}", *self._mounts(values)],
            "stop_grace_period": f"{grace_s}s",
            "cpus": "${CPUS:-1}",
            "mem_limit": memory,
            "pids_limit": 256,
        }
        if secrets := self._secrets.mounted(self._secrets.wanted(settings.model_fields)):
            service["secrets"] = secrets
        reached = self._reached_by_others(port, CONTAINER_GRPC_PORT) if port else {}
        if "ports" in reached:
            if package == "predictor":  # its stream of snapshots has a port of its own
                above = frames_port(port), frames_port(CONTAINER_GRPC_PORT)
                reached["ports"].append(self._published(*above))
            reached["ports"] += self._metrics(port)
        return service | reached

    def _environment(self, settings: type[BaseSettings], values: Mapping[str, Any]) -> _Service:
        """The settings that differ from the defaults, as variables."""
        prefix = str(settings.model_config["env_prefix"])
        found = {}
        for name, value in values.items():
            default = settings.model_fields[name].get_default(call_default_factory=True)
            text = _escaped(value if isinstance(value, str) else json.dumps(value))
            if name in _OVERRIDABLE:
                text = f"${{{_OVERRIDABLE[name]}:-{text}}}"
            elif value == default and name != "name":
                continue
            found[f"{prefix}{name.upper()}"] = text
        for name in self._secrets.wanted(settings.model_fields):
            found[f"{prefix}{name.upper()}"] = self._secrets.path(name)
        return found

    def _mounts(self, values: Mapping[str, Any]) -> list[str]:
        """The files of this host that a service reads, except secrets."""
        cluster = self._cluster
        sections = (cluster.schedulers, cluster.tagger, cluster.traffic)
        named = {name: path for section in sections for name, path in section}
        inside = [v for v in values.values() if str(v).startswith(f"{CONTAINER_FILES}/")]
        found = {path: path.rpartition("/")[2] for path in inside}
        secret = self._secrets.wanted(found.values())
        return [
            f"{self._relative(named[name])}:{path}:ro"
            for path, name in found.items()
            if name not in secret
        ]

    def _named_hosts(self) -> _Service:
        """Hosts that no DNS server knows: a container does not see its host's /etc/hosts."""
        known = self._cluster.addresses.items()
        return {"extra_hosts": [f"{name}={address}" for name, address in known]} if known else {}

    def _reached_by_others(self, port: int, container_port: int) -> _Service:
        """Networks and ports of a service that other hosts call."""
        if not self._layout.several_hosts:
            return {}
        ports = [self._published(port, container_port)]
        return {"networks": ["inside", "outside"], "ports": ports}

    def _published(self, port: int, container_port: int) -> str:
        """A port for other hosts, at this host's address in the cluster if that is known."""
        address = self._cluster.addresses.get(self._host, self._host)
        try:
            known = bracketed(str(ipaddress.ip_address(address)))
        except ValueError:
            known = "0.0.0.0"  # noqa: S104 - DNS tells other hosts where the name is
        return f"${{INSIDE_BIND:-{known}}}:{port}:{container_port}"

    def _metrics(self, port: int) -> list[str]:
        """The port of the metrics, if Prometheus runs on another host."""
        far = self._host != self._layout.front_host
        wanted = far and self._cluster.observability.prometheus_port
        return [self._published(port + METRICS_PORTS_ABOVE, METRICS_PORT)] if wanted else []

    def _relative(self, path: str) -> str:
        return _relative(Path(path), self._output)


_COMMON: _Service = {
    "restart": "unless-stopped",
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges:true"],
    "logging": {"driver": "json-file", "options": {"max-size": "10m", "max-file": "3"}},
}
_OURS: dict[str, tuple[type[BaseSettings], str, int]] = {
    "scheduler": (SchedulerSettings, "2g", 30),
    "predictor": (PredictorSettings, "1g", 5),
    "tagger": (TaggerSettings, "2g", 5),
    "provisioner": (ProvisionerSettings, "2g", 5),
    "batch": (BatchSettings, "2g", 15),
    "backend.emulator": (EmulatorSettings, "1g", 5),
}
"""Settings of each service, its memory limit, as in the Helm chart, and its grace period in
seconds. vLLM has no memory limit."""
# PID 1 gets only signals that it handles; an init process forwards all signals.
_CONFINED: _Service = {"init": True, "read_only": True, "tmpfs": ["/tmp"]}  # noqa: S108


def _relative(path: Path, output: Path) -> str:
    found = os.path.relpath(path.absolute(), output.absolute())
    return found if found.startswith(".") else f"./{found}"


def _escaped(text: str) -> str:
    """Text in which Compose replaces no variables."""
    return text.replace("$", "$$")
