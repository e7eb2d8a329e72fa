"""The emulated cluster in containers, as a user starts it: build, serve, lose an engine, go on."""

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

pytestmark = [pytest.mark.docker, pytest.mark.timeout(350)]

ROOT = Path(__file__).parents[2]
FILES = ("-f", "deploy/docker-compose.emulated.yml")
SCHEDULERS = ("scheduler-0", "scheduler-1")
ENGINES = ("engine-0", "engine-1")
SERVICES = {*SCHEDULERS, "tagger", *ENGINES, *(f"{engine}-predictor" for engine in ENGINES)}
API_KEY = "compose-test"
SNAPSHOTS_HEARD = (
    "import re, urllib.request as u; "
    "text = u.urlopen('http://127.0.0.1:9100/metrics', timeout=5).read().decode(); "
    "print(re.search(r'^foretell_snapshots_total (\\S+)', text, re.M).group(1))"
)


@dataclass(frozen=True)
class Cluster:
    """One Compose project."""

    docker: str
    project: str

    def compose(self, *args: str, timeout_s: float = 60.0) -> str:
        """What `docker compose ARGS` prints; AssertionError with its complaint if it fails."""
        # An .env of the developer's must not reach the test, nor may the ports collide.
        settings = {
            "API_KEYS": API_KEY,
            "BIND": "127.0.0.1",
            "SCHEDULER_0_PORT": "0",
            "SCHEDULER_1_PORT": "0",
        }
        command = [self.docker, "compose", "--env-file", os.devnull, "-p", self.project, *FILES]
        done = subprocess.run(
            [*command, *args],
            cwd=ROOT,
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, f"docker compose {args}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def inspect(self, service: str) -> dict[str, Any]:
        container = self.compose("ps", "--all", "--quiet", service).strip()
        inspected = subprocess.run(
            [self.docker, "inspect", container], capture_output=True, check=True, timeout=30
        )
        facts: dict[str, Any] = json.loads(inspected.stdout)[0]
        return facts

    def url(self, service: str) -> str:
        """Where the host reaches port 8000 of `service`."""
        return f"http://{self.compose('port', service, '8000').strip()}"

    def client(self, service: str) -> OpenAI:
        return OpenAI(base_url=f"{self.url(service)}/v1", api_key=API_KEY, max_retries=0)

    def healthy(self, engine: str) -> bool:
        """Whether every scheduler believes that `engine` is up."""
        return all(
            instance["healthy"]
            for scheduler in SCHEDULERS
            for instance in self._status(scheduler)["instances"]
            if instance["instance_id"] == engine
        )

    def snapshots_heard(self, predictor: str) -> float:
        """Snapshots of its engine that `predictor` has received since it started."""
        return float(self.compose("exec", "-T", predictor, "python", "-c", SNAPSHOTS_HEARD))

    def _status(self, scheduler: str) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {API_KEY}"}
        answer = httpx.get(f"{self.url(scheduler)}/status", headers=headers, timeout=10)
        status: dict[str, Any] = answer.raise_for_status().json()
        return status


def find_docker() -> str:
    """The path of a `docker` that has an engine and Compose; skips the test otherwise."""
    docker = shutil.which("docker")
    if docker is None:
        pytest.skip("no docker command on this machine")
    for probe in (["info"], ["compose", "version"]):
        done = subprocess.run([docker, *probe], capture_output=True, check=False, timeout=30)
        if done.returncode != 0:
            pytest.skip(f"'docker {' '.join(probe)}' fails: no Docker engine with Compose here")
    return docker


def wait_until(condition: Callable[[], bool], what: str, within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    cluster = Cluster(find_docker(), f"foretell-test-{uuid.uuid4().hex[:8]}")
    failures_before = request.session.testsfailed
    up = False
    try:
        cluster.compose("up", "--build", "--detach", "--wait", timeout_s=300)
        for scheduler in SCHEDULERS:
            ready = f"{cluster.url(scheduler)}/ready"
            wait_until(lambda url=ready: httpx.get(url).is_success, f"{scheduler} is ready")  # type: ignore[misc]
        wait_until(lambda: cluster.healthy("engine-0"), "engine-0 is healthy")
        wait_until(lambda: cluster.healthy("engine-1"), "engine-1 is healthy")
        up = True
        yield cluster
    finally:
        if not up or request.session.testsfailed > failures_before:
            sys.stdout.write(cluster.compose("ps", "--all"))
            sys.stdout.write(cluster.compose("logs", "--tail", "200"))
        cluster.compose("down", "--volumes", "--timeout", "5", timeout_s=120)


def ask(client: OpenAI, **options: Any) -> Any:
    """A chat request, answered raw so that a test sees the headers too."""
    model = client.models.list().data[0].id
    return client.chat.completions.with_raw_response.create(
        model=model, messages=[{"role": "user", "content": "Tell me a story."}], **options
    )


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_published_scheduler_answers(cluster: Cluster, scheduler: str) -> None:
    client = cluster.client(scheduler)

    whole = ask(client, max_tokens=8, extra_body={"ignore_eos": True})
    assert whole.headers["x-foretell-instance"] in {"engine-0", "engine-1"}
    assert whole.headers["x-foretell-emulated"] == "true"
    assert whole.parse().usage.completion_tokens == 8

    streamed = ask(client, max_tokens=8, stream=True, extra_body={"ignore_eos": True})
    assert streamed.headers["x-foretell-instance"] in {"engine-0", "engine-1"}
    chunks = list(streamed.parse())
    assert chunks[-1].choices[0].finish_reason == "length"
    assert sum(bool(chunk.choices[0].delta.content) for chunk in chunks) == 8


def test_placements_are_predicted_over_the_shared_sockets(cluster: Cluster) -> None:
    for engine in ENGINES:
        predictor = f"{engine}-predictor"
        wait_until(
            lambda name=predictor: cluster.snapshots_heard(name) > 0,  # type: ignore[misc]
            f"{predictor} hears its engine",
        )
    headers = ask(cluster.client("scheduler-0"), max_tokens=4).headers
    assert float(headers["x-foretell-predicted-ttft-s"]) > 0


def test_a_key_is_asked_for(cluster: Cluster) -> None:
    answer = httpx.post(f"{cluster.url('scheduler-0')}/v1/chat/completions", json={})
    assert answer.status_code == 401


def test_containers_are_confined(cluster: Cluster) -> None:
    assert set(cluster.compose("ps", "--services").split()) == SERVICES
    published: dict[str, list[str]] = {}
    for service in SERVICES:
        facts = cluster.inspect(service)
        assert cluster.compose("exec", "-T", service, "id", "-u").strip() == "10001", service
        assert facts["HostConfig"]["ReadonlyRootfs"], service
        assert facts["HostConfig"]["CapDrop"] == ["ALL"], service
        assert "no-new-privileges:true" in facts["HostConfig"]["SecurityOpt"], service
        bound = [b for ports in facts["NetworkSettings"]["Ports"].values() for b in ports or []]
        published[service] = [binding["HostIp"] for binding in bound]
    expected = {name: ["127.0.0.1"] if name in SCHEDULERS else [] for name in SERVICES}
    assert published == expected


def test_a_killed_engine_is_survived_and_comes_back(cluster: Cluster) -> None:
    first = ask(cluster.client("scheduler-0"), max_tokens=4)
    victim = first.headers["x-foretell-instance"]

    cluster.compose("kill", victim)

    for scheduler in SCHEDULERS * 2:
        answer = ask(cluster.client(scheduler), max_tokens=4)
        assert answer.headers["x-foretell-instance"] != victim
    assert cluster.inspect(victim)["State"]["Status"] == "exited"

    predictor = f"{victim}-predictor"
    heard_before = cluster.snapshots_heard(predictor)
    cluster.compose("start", victim)
    wait_until(lambda: cluster.healthy(victim), f"{victim} is healthy again")
    wait_until(
        lambda: cluster.snapshots_heard(predictor) > heard_before, f"{predictor} hears it again"
    )
