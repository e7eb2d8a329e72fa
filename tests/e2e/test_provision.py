"""Engines start and stop with the load; no request fails although the provisioner is killed."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest
from cluster import START_S, Cluster, cluster, until

pytestmark = pytest.mark.timeout(240)

SECTIONS = {
    "engines": [{"kind": "emulated", "args": "--speedup 20"}],
    "schedulers": {"replicas": 2},
    "policy": {"name": "least_outstanding"},
    "tagger": {"model": "none"},
    "provisioning": {
        "enabled": True,
        "minimum": 0,
        "maximum": 2,
        "strategy": "target",
        "strategy_parameters": {"requests": 2},
        "cool_down_s": 5,  # clients that all pause at once do not end engines
        "every_s": 0.2,
    },
}
WORKERS = 5


class Load:
    """Clients that send one request after the other and record every answer."""

    def __init__(self, client: httpx.Client) -> None:
        self.answers: list[tuple[int, str]] = []
        self.errors: list[str] = []
        self.stop = Event()
        self._client = client

    def once(self) -> int:
        """Send one request; return the answer's status."""
        body = {"model": "Llama-2-7b-hf", "prompt": "Once upon a time", "max_tokens": 400}
        answer = self._client.post("/v1/completions", json=body)
        tokens = answer.json().get("usage", {}).get("completion_tokens", 0)
        assert answer.status_code != 200 or tokens > 0
        if answer.status_code != 200:
            self.errors.append(answer.text)
        self.answers.append((answer.status_code, answer.headers.get("x-foretell-instance", "")))
        return answer.status_code

    def work(self) -> None:
        while not self.stop.is_set():
            self.once()

    def used(self) -> set[str]:
        return {instance for _, instance in self.answers}


def engines(found: Cluster) -> dict[str, str]:
    """The phase of each engine by name, from the provisioner's state file."""
    path = found.run_dir / "provisioner" / "engines.json"
    state: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return {name: engine["phase"] for name, engine in state.items()}


def kill_when(found: Cluster, condition: Callable[[dict[str, str]], bool]) -> None:
    """SIGKILL the provisioner once the engines meet `condition`, and wait for its restart."""
    until(lambda: condition(engines(found)), START_S)
    before = found.component("provisioner")["pid"]
    found.kill("provisioner")
    until(lambda: found.component("provisioner")["pid"] not in (0, before), START_S)


def test_engines_come_and_go_and_no_request_is_lost(tmp_path: Path) -> None:
    file = tmp_path / "given.yaml"
    file.write_text(json.dumps(SECTIONS))
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    with (
        cluster(run_dir, f"--cluster={file}") as found,
        httpx.Client(base_url=found.endpoint, timeout=START_S, trust_env=False) as client,
    ):
        assert engines(found) == {}
        load = Load(client)
        with ThreadPoolExecutor(WORKERS + 1) as pool:
            first = pool.submit(load.once)  # scales from zero: waits for an engine
            kill_when(found, lambda phases: "warming" in phases.values())
            assert first.result(START_S) == 200
            workers = [pool.submit(load.work) for _ in range(WORKERS)]
            try:
                kill_when(found, lambda phases: len(phases) == 2)
                until(lambda: len(load.used()) == 2, START_S)  # the second engine gets traffic
            finally:
                load.stop.set()
            kill_when(found, lambda phases: len(phases) < 2 or "draining" in phases.values())
            for worker in workers:
                worker.result(START_S)
        until(lambda: not engines(found), START_S)
        until(lambda: not any("engine" in c["name"] for c in found.state()["components"]), START_S)
        assert not load.errors


def test_a_batch_alone_has_an_engine_started_and_stopped(tmp_path: Path) -> None:
    file = tmp_path / "given.yaml"
    batches = {"folder": str(tmp_path / "batches")}
    file.write_text(json.dumps({**SECTIONS, "batches": batches}))
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    with (
        cluster(run_dir, f"--cluster={file}") as found,
        httpx.Client(base_url=found.endpoint, timeout=START_S, trust_env=False) as client,
    ):
        assert engines(found) == {}
        body = {"model": "Llama-2-7b-hf", "prompt": "Once upon a time", "max_tokens": 400}
        line = {"method": "POST", "url": "/v1/completions", "body": body}
        text = "".join(json.dumps({"custom_id": f"c{i}", **line}) + "\n" for i in range(8))
        files = {"file": ("in.jsonl", text.encode())}
        uploaded = client.post("/v1/files", data={"purpose": "batch"}, files=files).json()
        asked = {"endpoint": "/v1/completions", "completion_window": "24h"}
        path = "/v1/batches"
        batch = client.post(path, json={"input_file_id": uploaded["id"], **asked}).json()
        until(lambda: engines(found), START_S)

        def status() -> str:
            return str(client.get(f"{path}/{batch['id']}").json()["status"])

        until(lambda: status() == "completed", START_S)
        until(lambda: not engines(found), START_S)
