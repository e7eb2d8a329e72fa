"""What the tables of `foretell up` and `foretell status` show."""

import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table
from typer.testing import CliRunner

from cli.main import app
from foretell.config import Cluster
from foretell.v1 import predictor_pb2
from tools.local.plan import plan_cluster
from tools.local.state import ClusterState
from tools.local.table import Poller, Readings, render

REPORT = {
    "replica_id": "scheduler-1",
    "policy": "predicted_latency",
    "requests_total": 1234,
    "instances": [
        {
            "instance_id": "engine-0",
            "url": "http://127.0.0.1:21000",
            "healthy": False,
            "outstanding": 7,
            "dispatched_total": 99,
            "model_names": ["llama"],
            "emulated": True,
        }
    ],
}


def text_of(table: Table, width: int = 200) -> str:
    output = io.StringIO()
    Console(width=width, file=output).print(table)
    return output.getvalue()


def row(text: str, name: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if f" {name} " in line)
    return [cell.strip() for cell in line.strip("│").split("│")]


@pytest.fixture
def state(tmp_path: Path) -> ClusterState:
    return state_of(tmp_path, "emulated")


def state_of(tmp_path: Path, kind: str) -> ClusterState:
    cluster = Cluster.model_validate(
        {"engines": [{"kind": kind, "engines": 2, "port": 21_000}], "schedulers": {"replicas": 1}}
    )
    plan = plan_cluster(cluster, tmp_path / "cluster.yaml", tmp_path, [21_002], restart=True)
    return ClusterState.of(plan, tmp_path / "cluster.json")


def test_live_table_shows_load_where_a_predictor_answered(state: ClusterState) -> None:
    load = predictor_pb2.Load(running=3, waiting=2, used_blocks=25, total_blocks=100)
    status = predictor_pb2.StatusResponse(load=load, snapshot_age_s=0.25, predictions=41)
    text = text_of(render(state, Readings({"engine-0": status}, {"scheduler-0": 17})))
    assert row(text, "engine-0 emulated")[5:] == ["3", "2", "25%", "0.25 s", "", ""]
    assert row(text, "engine-0.predictor")[9] == "41"
    assert row(text, "engine-1 emulated")[5:9] == ["?"] * 4
    assert row(text, "scheduler-0")[10] == "17"
    assert "launcher" not in text


def test_narrow_live_table_leaves_addresses_out(state: ClusterState) -> None:
    text = text_of(render(state, Readings(), wide=False), width=100)
    assert "127.0.0.1:21000" not in text
    assert row(text, "engine-0 emulated")[1] == "starting"


def test_vllm_engines_are_not_called_emulated(tmp_path: Path) -> None:
    assert "emulated" not in text_of(render(state_of(tmp_path, "vllm"), Readings()))


async def test_poller_leaves_out_who_does_not_answer(state: ClusterState) -> None:
    poller = Poller(state)
    readings = await poller.read()
    await poller.close()
    assert (readings.status, readings.requests) == ({}, {})


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """A server that answers so to a caller who shows the key; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            allowed = self.headers.get("Authorization") == "Bearer secret"
            self.send_response(status if allowed and self.path == "/status" else 401)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def call(url: str, *more: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["status", "--url", url, *more], env={"COLUMNS": "200"})
    return result.exit_code, f"{result.output}{result.exception or ''}"


def test_status_prints_what_the_scheduler_reports() -> None:
    with answering(200, json.dumps(REPORT).encode()) as url:
        code, text = call(url, "--api-key", "secret")
    assert code == 0
    assert "scheduler-1: predicted_latency, 1234 requests" in text
    cells = row(text, "engine-0 emulated")
    assert cells[1:] == ["down", "7", "99", "llama", "http://127.0.0.1:21000"]


@pytest.mark.parametrize(
    ("status", "body", "more", "message"),
    [
        (200, b"{}", ("--api-key", "secret"), "gives no status"),
        (200, b"<html>", ("--api-key", "secret"), "gives no status"),
        (404, b"", ("--api-key", "secret"), "answers 404"),
        (200, b"{}", (), "wants a key"),
    ],
)
def test_status_says_what_is_wrong(
    status: int, body: bytes, more: tuple[str, ...], message: str
) -> None:
    with answering(status, body) as url:
        code, text = call(url, *more)
    assert code == 1
    assert message in text


def test_status_without_a_scheduler() -> None:
    code, text = call("http://127.0.0.1:1")
    assert code == 1
    assert "no scheduler answers at http://127.0.0.1:1" in text
