"""Prometheus and Grafana beside a cluster in containers."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from foretell.config import Layout
from foretell.config.layout import CONTAINER_PORT, predictor_name
from foretell.tools import observability

METRICS_PORT = 9100
METRICS_PORTS_ABOVE = 2000
"""On another host, a predictor or tagger has its metrics at its gRPC port plus this number."""


def shipped() -> Iterator[tuple[str, str]]:
    """The rules, the dashboards and Grafana's provisioning: name and text of each file."""
    folder = Path(observability.__file__).with_name("shipped")
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield str(path.relative_to(folder)), path.read_text(encoding="utf-8")


def services_that_watch(port: int, shared: str, config: str) -> dict[str, dict[str, Any]]:
    """Compose services by name, each with a volume of that name.

    `port`: Prometheus' on the loopback; `shared`: the folder deploy/observability; `config`: the
    file of Prometheus' configuration.
    """
    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    found: dict[str, dict[str, Any]] = yaml.safe_load(text)
    for service, field in product(found.values(), ("volumes", "ports")):
        for name, value in (("{port}", str(port)), ("{shared}", shared), ("{config}", config)):
            service[field] = [each.replace(name, value) for each in service[field]]
    return found


def scraped(layout: Layout) -> dict[str, Any]:
    """Prometheus' configuration: its targets, and the alerts."""
    cluster = layout.cluster
    engines, comes_and_goes = cluster.engine_list(), cluster.provisioning.enabled

    def metrics(name: str, host: str, port: int) -> str:
        here = host == layout.front_host
        return f"{name}:{METRICS_PORT}" if here else f"{host}:{port + METRICS_PORTS_ABOVE}"

    jobs: dict[str, list[dict[str, Any]]] = {
        "scheduler": [_of(f"{name}:{CONTAINER_PORT}") for name in cluster.scheduler_names()],
        "predictor": [
            _of(metrics(predictor_name(each.name), each.host, each.predictor_port), each.name)
            for each in engines
        ],
        "tagger": [_of(metrics("tagger", layout.tagger_host, cluster.tagger.port))],
        **({"batch": [_of(f"batch:{METRICS_PORT}")]} if cluster.batches.folder else {}),
        **({"provisioner": [_of(f"provisioner:{CONTAINER_PORT}")]} if comes_and_goes else {}),
        "engine": [
            _of(layout.engine_url(each).removeprefix("http://"), each.name) for each in engines
        ],
    }
    return {
        "global": {"scrape_interval": "5s", "scrape_timeout": "4s"},
        "rule_files": ["/etc/prometheus/rules.yml"],
        "scrape_configs": [
            {"job_name": job, "static_configs": targets} for job, targets in jobs.items()
        ],
    }


def _of(target: str, engine: str = "") -> dict[str, Any]:
    """A target, with the name of its engine as label if it belongs to one."""
    return {"targets": [target], **({"labels": {"instance_id": engine}} if engine else {})}
