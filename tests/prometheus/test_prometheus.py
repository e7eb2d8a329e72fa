"""Queries of panels and alerts on a real Prometheus, with a loaded cluster and a killed engine."""

import asyncio
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from foretell.services.process.folders import free_ports
from foretell.tools.observability.catalogue import by_process, labels_of
from foretell.tools.observability.panels import (
    ANNOTATIONS,
    CHOOSES_FROM,
    DASHBOARDS,
    VARIABLES,
    WINDOW,
    scoped,
)
from tests.alerts import ALERTS, RULES
from tests.processes import processes_with, read_facts, wait_until

ROOT = Path(__file__).parents[2]
BINARY = os.environ.get("FORETELL_PROMETHEUS") or shutil.which("prometheus")
DEADLINE_S = 300.0
"""The deadline of each step; on an idle machine all steps together take a minute."""
SHORT = "30s"
"""Replaces the windows of minutes and hours in panels and alerts."""
FIRING = {
    "ForetellEngineLost",
    "ForetellEngineUnpredicted",
    "ForetellErrors",
    "ForetellSloBurn",
}
"""The alerts that the killed engine, the only one of its model, and unmeetable SLOs cause."""
ENGINES = {"engine-0": "small", "engine-1": "large"}
"""The model of each engine."""
TENANTS = ("ann", "bob", "cat")

pytestmark = [
    pytest.mark.prometheus,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not BINARY, reason="no program prometheus: make test-prometheus gets it"),
]


@contextmanager
def process(
    folder: Path, *command: str, log: str, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    with (
        (folder / f"{log}.log").open("wb") as out,
        subprocess.Popen(
            command, stdout=out, stderr=out, env={**os.environ, **environment}
        ) as child,
    ):
        try:
            yield child
        finally:
            child.terminate()
            try:
                child.wait(DEADLINE_S)
            finally:
                child.kill()


@dataclass
class Cluster:
    url: str
    targets: dict[str, list[str]]
    """The scraped host:port, by job; those of engines and predictors in the order of `ENGINES`."""
    engines: dict[str, subprocess.Popen[bytes]]


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[Cluster]:
    """A cluster of a tagger, two emulated engines with their predictors, and one scheduler."""
    engine = {"kind": "emulated", "args": "--speedup 10"}
    keys = {name: {"sha256": sha256(name.encode()).hexdigest()} for name in TENANTS}
    keys["ann"]["admin"] = True
    (folder / "keys.yaml").write_text(json.dumps(keys))
    (folder / "secret").write_text("shared")
    content = {
        "models": {model: {} for model in ENGINES.values()},
        "engines": [{**engine, "model": model} for model in ENGINES.values()],
        "schedulers": {"port": 0, "replicas": 1, "api_keys_file": "keys.yaml"},
        "traffic": {"secret_file": "secret"},
        "targets": {"ttft_target_ms": 0.001},
        "run_dir": "run",
        "batches": {"folder": "kept"},
    }
    (folder / "cluster.yaml").write_text(json.dumps(content))
    names = ("tagger", *ENGINES, "scheduler-0", "provisioner", "batch")
    ready = {name: folder / f"{name}.ready" for name in names}
    metrics_ports = {f"FORETELL_{p}_METRICS_PORT": "0" for p in ("TAGGER", "PREDICTOR", "BATCH")}
    metrics_ports["FORETELL_PROVISIONER_SCHEDULER_API_KEY"] = "ann"
    with ExitStack() as stack:

        def start(module: str, name: str, *more: str) -> subprocess.Popen[bytes]:
            flags = [f"--cluster={folder / 'cluster.yaml'}", f"--ready-file={ready[name]}", *more]
            flags += [] if name in ("tagger", "provisioner", "batch") else [f"--name={name}"]
            command = [sys.executable, "-m", module, *flags]
            return stack.enter_context(process(folder, *command, log=name, **metrics_ports))

        start("foretell.services.tagger", "tagger")
        engines = {name: start("foretell.services.backend", name) for name in ENGINES}
        start("foretell.services.scheduler", "scheduler-0")
        await wait_until(ready["scheduler-0"].exists, DEADLINE_S)
        url = read_facts(ready["scheduler-0"])["url"]
        start(
            "foretell.services.provisioner", "provisioner", f"--schedulers={url}", "--every-s=0.5"
        )
        start("foretell.services.batch", "batch", f"--schedulers={url}")
        await wait_until(lambda: all(map(Path.exists, ready.values())), DEADLINE_S)
        predictors = [
            read_facts(next((folder / "run").glob(f"{name}.predictor.ready*"))) for name in ENGINES
        ]
        told = {job: [read_facts(ready[job])] for job in ("tagger", "batch")}
        told["predictor"] = predictors
        targets = {
            job: [f"127.0.0.1:{facts['metrics_port']}" for facts in found]
            for job, found in told.items()
        }
        assert len(targets["predictor"]) == len(ENGINES)
        urls = [read_facts(ready[name])["url"] for name in ENGINES]
        targets["engine"] = [url.removeprefix("http://") for url in urls]
        targets["provisioner"] = [read_facts(ready["provisioner"])["url"].removeprefix("http://")]
        await wait_until(lambda: _healthy(url) == len(ENGINES), DEADLINE_S)
        yield Cluster(url, {"scheduler": [url.removeprefix("http://")], **targets}, engines)


def _healthy(url: str) -> int:
    headers = {"authorization": "Bearer ann"}
    instances = httpx.get(f"{url}/status", headers=headers, trust_env=False).json()["instances"]
    return sum(instance["healthy"] for instance in instances)


@asynccontextmanager
async def load(url: str) -> AsyncIterator[None]:
    """Eight clients that always have a request in progress; prompts share prefixes."""

    async def client(number: int) -> None:
        headers = {"authorization": f"Bearer {TENANTS[number % len(TENANTS)]}"}
        model = [*ENGINES.values()][number % len(ENGINES)]
        async with httpx.AsyncClient(timeout=60, headers=headers, trust_env=False) as http:
            for turn in range(1_000_000):
                text = "What is the capital of France? " * 20 + f"Answer {turn % 7} of {number}."
                body = {
                    "model": model,
                    "messages": [{"role": "user", "content": text}],
                    "stream": bool(turn % 2),
                }
                with suppress(httpx.HTTPError):  # an engine gets killed
                    await http.post(f"{url}/v1/chat/completions", json=body)

    clients = [asyncio.create_task(client(number)) for number in range(8)]
    try:
        yield
    finally:
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)


def shortened(expression: str) -> str:
    """The expression with short windows, and with every value of the dashboard's variables."""
    for variable in VARIABLES.values():
        expression = expression.replace(f'"${variable}"', '".*"')
    return re.sub(r"\[[^\]]+\]", f"[{SHORT}]", expression.replace(WINDOW, SHORT))


class Prometheus:
    """A client of a Prometheus that scrapes every half second."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def values(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series that is not NaN now; the query must be valid."""
        answer = await self._http.post("/api/v1/query", data={"query": expression})
        assert answer.status_code == 200, (expression, answer.text)
        found = answer.json()["data"]["result"]
        pairs = [(each["metric"], float(each["value"][1])) for each in found]
        return [(labels, value) for labels, value in pairs if not math.isnan(value)]

    async def firing(self) -> set[str]:
        series = await self.values("ALERTS{alertstate='firing'}")
        return {labels["alertname"] for labels, _ in series}

    async def is_up(self) -> bool:
        try:
            return (await self._http.get("/-/ready")).is_success
        except httpx.HTTPError:
            return False


@asynccontextmanager
async def prometheus(folder: Path, targets: dict[str, list[str]]) -> AsyncIterator[Prometheus]:
    hurried: dict[str, Any] = yaml.safe_load(RULES.read_text())
    for rule in hurried["groups"][0]["rules"]:
        rule |= {"expr": shortened(rule["expr"]), "for": "1s"}
    (folder / "rules.yml").write_text(yaml.safe_dump(hurried))
    config = {
        "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
        "rule_files": [str(folder / "rules.yml")],
        "scrape_configs": [
            {"job_name": job, "static_configs": list(_static(job, found))}
            for job, found in targets.items()
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    (port,) = free_ports("127.0.0.1", 1)
    flags = [
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    assert BINARY is not None
    with process(folder, BINARY, *flags, log="prometheus"):
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as http:
            asked = Prometheus(http)
            await eventually(lambda: _not_up(asked))
            yield asked


def _static(job: str, targets: list[str]) -> Iterator[dict[str, Any]]:
    """Scrape targets with labels as `foretell render compose` makes them."""
    names = [*ENGINES] if job in ("engine", "predictor") else ["" for _ in targets]
    for target, name in zip(targets, names, strict=True):
        yield {"targets": [target], "labels": {"instance_id": name} if name else {}}


async def eventually(missing: Callable[[], Awaitable[Collection[str]]]) -> None:
    """Wait until `missing` returns nothing; fails with what it still returns."""
    end = time.monotonic() + DEADLINE_S
    while found := await missing():
        assert time.monotonic() < end, "\n".join(found)
        await asyncio.sleep(0.5)


def exposed(target: str) -> set[str]:
    text = httpx.get(f"http://{target}/metrics", trust_env=False).text
    return {
        family.name + ("_total" if family.type == "counter" else "")
        for family in text_string_to_metric_families(text)
        if family.name.startswith(("foretell_", "process_"))
        and not family.name.endswith("_created")
    }


async def test_every_panel_has_data_and_a_killed_engine_is_told_of(tmp_path: Path) -> None:
    panels = {
        f"{page.title}: {panel.title}: {query}": shortened(scoped(query, labels_of))
        for page in DASHBOARDS
        for panel in page.panels
        for query, _ in panel.queries
    }
    choices = (("model_name", 2), ("instance_id", 2), ("tenant", len(TENANTS)))
    chosen = {
        VARIABLES[label]: f"count(count by ({label}) ({CHOOSES_FROM[label]}{{{label}!=''}})) == {n}"
        for label, n in choices
    }
    marks = {title: shortened(scoped(query, labels_of)) for title, _, query in ANNOTATIONS}
    signals = {alert.name: shortened(alert.signal) for alert in ALERTS}
    async with cluster(tmp_path) as running, load(running.url):
        for job, targets in running.targets.items():
            if job == "engine":
                continue  # vLLM's own metrics
            known = {metric.name for metric in by_process()[job]}
            for target in targets:
                assert exposed(target) == known, job
        async with prometheus(tmp_path, running.targets) as asked:
            silent = {**panels, **chosen, **signals}
            for query in marks.values():
                await asked.values(query)  # annotations need not have data, only be valid
            await eventually(lambda: _still_silent(asked, silent))
            killed = running.engines["engine-1"]
            killed.send_signal(signal.SIGKILL)
            await eventually(lambda: _not_firing(asked))
            lost = await asked.values(ALERTS[0].expression)
            assert "engine-1" in {labels["instance_id"] for labels, _ in lost}
    await wait_until(lambda: processes_with(str(tmp_path)) == [])


async def _not_up(asked: Prometheus) -> list[str]:
    return [] if await asked.is_up() else ["Prometheus is not up"]


async def _still_silent(asked: Prometheus, queries: dict[str, str]) -> dict[str, str]:
    """Remove the `queries` that have data now; return the others, which never had any."""
    for name, query in list(queries.items()):
        if await asked.values(query):
            del queries[name]
    return queries


async def _not_firing(asked: Prometheus) -> set[str]:
    return FIRING - await asked.firing()
