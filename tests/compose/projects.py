"""Compose projects on a real Docker engine, and how to ask them."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

ROOT = Path(__file__).parents[2]
SCHEDULERS = ("scheduler-0", "scheduler-1")
ENGINES = ("engine-0", "engine-1")
SERVICES = {*SCHEDULERS, "tagger", *ENGINES, *(f"{engine}-predictor" for engine in ENGINES)}
BUILD_S = 900.0
API_KEY = "compose-test"
SOCKET = Path("/var/run/docker.sock")
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
    file: str
    keys: Path
    """The file with the clients' API key."""

    def compose(self, *args: str, timeout_s: float = 60.0) -> str:
        """The output of `docker compose ARGS`; AssertionError with its error text if it fails."""
        # A developer's .env must not affect the test, and ports must not collide.
        settings = {
            "API_KEYS_FILE": str(self.keys),
            "BIND": "127.0.0.1",
            "PORT": "0",
            "SCHEDULER_0_PORT": "0",
            "SCHEDULER_1_PORT": "0",
            "PROMETHEUS_PORT": "0",
            "DOCKER_GID": str(SOCKET.stat().st_gid) if SOCKET.exists() else "0",
        }
        named = ["--env-file", os.devnull, "-p", self.project, "-f", self.file]
        command = [self.docker, "compose", *named]
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
        container = self.compose("--profile", "*", "ps", "--all", "--quiet", service).strip()
        inspected = subprocess.run(
            [self.docker, "inspect", container], capture_output=True, check=True, timeout=30
        )
        facts: dict[str, Any] = json.loads(inspected.stdout)[0]
        return facts

    def url(self, service: str) -> str:
        """The URL at which the host reaches port 8000 of `service`."""
        return f"http://{self.compose('port', service, '8000').strip()}"

    def client(self, service: str) -> OpenAI:
        return OpenAI(base_url=f"{self.url(service)}/v1", api_key=API_KEY, max_retries=0)

    def healthy(self, engine: str) -> bool:
        """Whether every scheduler considers `engine` healthy."""
        return all(
            instance["healthy"]
            for scheduler in SCHEDULERS
            for instance in self._status(scheduler)["instances"]
            if instance["instance_id"] == engine
        )

    def snapshots_heard(self, predictor: str) -> float:
        """The number of snapshots that `predictor` has received since its start."""
        return float(self.compose("exec", "-T", predictor, "python", "-c", SNAPSHOTS_HEARD))

    def _status(self, scheduler: str) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {API_KEY}"}
        answer = httpx.get(f"{self.url(scheduler)}/status", headers=headers, timeout=10)
        status: dict[str, Any] = answer.raise_for_status().json()
        return status


def find_docker() -> str:
    """The path of a `docker` with an engine and Compose; skips the test otherwise."""
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


@contextmanager
def started(
    request: pytest.FixtureRequest, file: str, *, provisioned: bool = False
) -> Iterator[Cluster]:
    """The project of a compose file, built and up; its logs are printed if a test failed.

    `provisioned`: its engines are only created, and a provisioner starts them.
    """
    docker = find_docker()
    keys = Path(tempfile.mkdtemp()) / "keys"
    keys.write_text(API_KEY)
    keys.parent.chmod(0o755)  # containers run as another user
    cluster = Cluster(docker, f"foretell-test-{uuid.uuid4().hex[:8]}", file, keys)
    failures_before = request.session.testsfailed
    up = False
    try:
        if provisioned:
            cluster.compose("--profile", "engines", "create", "--build", timeout_s=BUILD_S)
        profile = ("--profile", "provisioner") if provisioned else ()
        cluster.compose(*profile, "up", "--build", "--detach", "--wait", timeout_s=BUILD_S)
        up = True
        yield cluster
    finally:
        if not up or request.session.testsfailed > failures_before:
            sys.stdout.write(cluster.compose("--profile", "*", "ps", "--all"))
            sys.stdout.write(cluster.compose("--profile", "*", "logs", "--tail", "200"))
        everything = ("--profile", "*", "down", "--volumes", "--timeout", "5")
        cluster.compose(*everything, timeout_s=120)
        shutil.rmtree(keys.parent)


def ask(client: OpenAI, **options: Any) -> Any:
    """Send a chat request; return the raw response, so that a test sees the headers, too."""
    model = client.models.list().data[0].id
    return client.chat.completions.with_raw_response.create(
        model=model, messages=[{"role": "user", "content": "Tell me a story."}], **options
    )
