"""A scheduler whose engines are pods: readiness, termination, and 10,000 pods that come and go."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from certificates import make_certificate
from engines import answer, engines, gated
from fake_watch import ApiServer, make_credentials, pod
from schedulers import running, until

from foretell.services.process import kubernetes

LOAD = Path(__file__).with_name("discovery_load.py")


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ApiServer:
    certificate, _ = make_certificate(tmp_path)
    credentials = make_credentials(tmp_path / "account", Path(certificate))
    server = ApiServer()
    monkeypatch.setattr(
        kubernetes.KubernetesApi,
        "of_this_pod",
        lambda: kubernetes.KubernetesApi(server.url, credentials),
    )
    return server


async def test_pods_get_requests_while_they_are_ready_and_end_their_streams(
    tmp_path: Path, server: ApiServer
) -> None:
    gate = asyncio.Event()
    async with engines(gated(gate), answer) as (first, second), server.serving():
        one: dict[str, Any] = {"address": "127.0.0.1", "ports": {"http": first.port}}
        two: dict[str, Any] = {"address": "127.0.0.1", "ports": {"http": second.port}}
        server.put(pod("engine-0", **one))
        server.put(pod("engine-1", ready=False, **two))
        async with running(tmp_path, instances="pods:app=engine", engine_wait_s=5) as scheduler:
            await scheduler.until(lambda s: len(s["instances"]) == 1)
            begun = asyncio.create_task(scheduler.complete())
            await until(lambda: len(first.received) == 1)
            server.put(pod("engine-0", terminating=True, **one))
            server.put(pod("engine-1", **two))
            await scheduler.until(lambda s: [i["healthy"] for i in s["instances"]] == [True, True])
            await scheduler.until(lambda s: s["instances"][0]["draining"])
            used = {(await scheduler.complete()).headers["x-foretell-instance"] for _ in range(3)}
            assert used == {"engine-1"}
            assert (await scheduler.instance("engine-0"))["outstanding"] == 1
            server.statuses = [500] * 5
            server.cut_all()
            problem = "discovery_problem"
            await scheduler.until(lambda s: "500" in s[problem])
            assert await scheduler.metric("foretell_discovery_unheard_seconds") > 0
            assert (await scheduler.complete()).status_code == 200
            gate.set()
            assert (await begun).status_code == 200
            server.remove("engine-0")
            await scheduler.until(
                lambda s: [i["instance_id"] for i in s["instances"]] == ["engine-1"]
            )
            await scheduler.until(lambda s: not s[problem])


def test_outside_of_kubernetes_it_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SystemExit, match="needs a pod of Kubernetes"):
        kubernetes.KubernetesApi.of_this_pod()


def test_ten_thousand_pods_come_and_go_and_nothing_stays() -> None:
    """Each is added, gets ready, terminates and is deleted; some 150 exist at a time."""
    done = subprocess.run(
        [sys.executable, str(LOAD), "10000"],
        env={**os.environ, "PYTHONPATH": str(LOAD.parent)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = dict(line.split("=") for line in done.stdout.split())
    assert told["left"] == "0"
    assert float(told["grown_mib"]) < 8
