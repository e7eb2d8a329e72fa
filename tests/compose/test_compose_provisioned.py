"""Engines in containers start and stop with the load while the provisioner is killed at each step.

No request is lost, and no container is left running.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from threading import Event
from typing import Any

import httpx
import pytest
from projects import API_KEY, ENGINES, ROOT, SCHEDULERS, Cluster, started, wait_until

from foretell.config import load_cluster
from foretell.tools.render.compose import render

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1500)]

SECTIONS = {
    "engines": [{"kind": "emulated", "args": "--speedup 20"}],
    "policy": {"name": "least_outstanding"},
    "tagger": {"model": "none"},
    "provisioning": {
        "enabled": True,
        "minimum": 0,
        "maximum": len(ENGINES),
        "strategy": "target",
        "strategy_parameters": {"requests": 2},
        "cool_down_s": 5,  # clients that all pause at once do not end engines
        "every_s": 0.5,
    },
}
WORKERS = 5
START_S = 180.0
STATE = "/run/foretell/provisioner/engines.json"
RUNNING = ("running", "restarting", "paused")


@pytest.fixture(scope="module")
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("provisioned")
    file = folder / "cluster.yaml"
    file.write_text(json.dumps(SECTIONS))
    for name, content in render(load_cluster(file), file, folder, ROOT).items():
        (folder / name).write_text(content)
    compose_file = str(folder / "docker-compose.yml")
    with started(request, compose_file, provisioned=True) as cluster:
        for scheduler in SCHEDULERS:
            healthy = f"{cluster.url(scheduler)}/health"
            wait_until(lambda url=healthy: httpx.get(url).is_success, f"{scheduler} is there")  # type: ignore[misc]
        yield cluster


class Load:
    """Clients that ask the schedulers in turn, one request after the other, and record answers."""

    def __init__(self, cluster: Cluster) -> None:
        self.answers: list[tuple[int, int, str]] = []
        """Status, tokens and engine of each answer."""
        self.stop = Event()
        self._urls = cycle([cluster.url(scheduler) for scheduler in SCHEDULERS])
        self._client = httpx.Client(timeout=START_S)

    def __enter__(self) -> "Load":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def once(self) -> None:
        body = {"model": "Llama-2-7b-hf", "prompt": "Once", "max_tokens": 400, "ignore_eos": True}
        url, headers = next(self._urls), {"authorization": f"Bearer {API_KEY}"}
        answer = self._client.post(f"{url}/v1/completions", json=body, headers=headers)
        tokens = answer.json().get("usage", {}).get("completion_tokens", 0)
        engine = answer.headers.get("x-foretell-instance", "")
        self.answers.append((answer.status_code, tokens, engine))

    def work(self) -> None:
        while not self.stop.is_set():
            self.once()

    def used(self) -> set[str]:
        return {engine for _, _, engine in self.answers}


def phases(cluster: Cluster) -> dict[str, str]:
    """The phase of each engine by name, from the provisioner's state file."""
    state: dict[str, Any] = json.loads(
        cluster.compose("exec", "-T", "scheduler-0", "cat", STATE) or "{}"
    )
    return {name: engine["phase"] for name, engine in state.items()}


def running(cluster: Cluster) -> set[str]:
    """The running containers of engines and predictors."""
    services = [name for engine in ENGINES for name in (engine, f"{engine}-predictor")]
    return {name for name in services if cluster.inspect(name)["State"]["Status"] in RUNNING}


def both(engines: Iterable[str]) -> set[str]:
    return {name for engine in engines for name in (engine, f"{engine}-predictor")}


def kill_when(cluster: Cluster, condition: Callable[[dict[str, str]], bool]) -> None:
    """SIGKILL the provisioner once the engines meet `condition`, and start it again."""
    wait_until(lambda: condition(phases(cluster)), "it comes to that", START_S)
    cluster.compose("kill", "--signal", "KILL", "provisioner")
    cluster.compose("start", "provisioner")


def test_engines_come_and_go_and_no_request_is_lost(cluster: Cluster) -> None:
    assert running(cluster) == set()
    with Load(cluster) as load, ThreadPoolExecutor(WORKERS + 1) as pool:
        first = pool.submit(load.once)  # scales from zero: waits for an engine
        kill_when(cluster, lambda found: "warming" in found.values())
        first.result(START_S)
        workers = [pool.submit(load.work) for _ in range(WORKERS)]
        try:
            kill_when(cluster, lambda found: len(found) == 2)
            wait_until(lambda: load.used() == set(ENGINES), "both get traffic", START_S)
            whole = both(ENGINES)  # even if it was killed between an engine and its predictor
            wait_until(lambda: running(cluster) == whole, "both run whole", START_S)
        finally:
            load.stop.set()
        kill_when(cluster, lambda found: len(found) < 2 or "draining" in found.values())
        for worker in workers:
            worker.result(START_S)
    wait_until(lambda: running(cluster) == set(), "all have stopped", START_S)
    assert phases(cluster) == {}
    assert {(status, tokens) for status, tokens, _ in load.answers} == {(200, 400)}


def test_who_may_use_the_socket_may_do_nothing_else(cluster: Cluster) -> None:
    facts = cluster.inspect("provisioner")
    assert cluster.compose("exec", "-T", "provisioner", "id", "-u").strip() == "10001"
    assert facts["HostConfig"]["CapDrop"] == ["ALL"]
    assert facts["HostConfig"]["ReadonlyRootfs"]
    assert facts["NetworkSettings"]["Ports"].get("8000/tcp") is None
    for scheduler in SCHEDULERS:
        mounts = [mount["Destination"] for mount in cluster.inspect(scheduler)["Mounts"]]
        assert not [each for each in mounts if "docker" in each]
