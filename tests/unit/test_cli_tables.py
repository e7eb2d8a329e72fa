"""What the tables of `foretell up` and `foretell status` show."""

import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from random import Random
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table
from typer.testing import CliRunner

from foretell import __version__
from foretell.cli.main import app
from foretell.config import Cluster
from foretell.tools.local.plan import plan_cluster
from foretell.tools.local.state import ClusterState
from foretell.tools.local.table import read, render
from foretell.tools.view.cluster import ClusterView, merged
from foretell.tools.view.replicas import reports
from foretell.tools.view.table import WIDE_COLUMNS, WIDEST_COLUMNS, pair, table


def instance(name: str, **more: Any) -> dict[str, Any]:
    return {
        "instance_id": name,
        "url": "http://127.0.0.1:21000",
        "healthy": True,
        "emulated": True,
        "model_names": ["llama"],
        "outstanding": 7,
        "dispatched_total": 99,
        "running": 3,
        "waiting": 2,
        "kv_used_ratio": 0.251,
        "calibration_steps": 1412,
        "last_minute": {
            "ttft_s": [0.1, 0.2, 0.0],
            "predicted_ttft_s": [0.1, 0.3, 0.2],
            "e2e_s": [2.0, 4.0, 5.0],
            "predicted_e2e_s": [1.0, 5.0, 5.0],
        },
        **more,
    }


UNKNOWN = dict.fromkeys(("running", "waiting", "kv_used_ratio", "calibration_steps"))
NO_ANSWERS = {name: [] for name in instance("")["last_minute"]}


def report(replica: str, *instances: dict[str, Any]) -> dict[str, Any]:
    return {
        "replica_id": replica,
        "version": __version__,
        "policy": "slo",
        "requests_total": 1200,
        "in_progress": 3,
        "instances": list(instances),
    }


def text_of(shown: Table, width: int) -> str:
    output = io.StringIO()
    Console(width=width, file=output).print(shown)
    return output.getvalue()


def row(text: str, name: str) -> str:
    (line,) = (line for line in text.splitlines() if line.strip().startswith(f"{name} "))
    return " ".join(line.split())


@pytest.fixture
def state(tmp_path: Path) -> ClusterState:
    return state_of(tmp_path, "emulated")


def state_of(tmp_path: Path, kind: str) -> ClusterState:
    cluster = Cluster.model_validate(
        {"engines": [{"kind": kind, "engines": 2, "port": 21_000}], "schedulers": {"replicas": 1}}
    )
    plan = plan_cluster(cluster, tmp_path / "cluster.yaml", tmp_path, [21_002], restart=True)
    return ClusterState.of(plan, tmp_path / "cluster.json")


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_table_fits_and_says_what_matters(width: int) -> None:
    names = [f"engine-{number}" for number in range(12)]
    view = merged([report("a", *map(instance, names)), report("b", *map(instance, names))])
    text = text_of(table(view, width), width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    line = row(text, "engine-0")
    assert line.startswith("engine-0 up 3 + 2 25% 100 / 200 ms 5.00 / 4.00 s")
    assert " 8% " in line  # of all placements
    assert " 1,412" in line
    assert ("25% 200 / 150 ms" in line) == (width >= WIDE_COLUMNS)
    assert ("http://127.0.0.1:21000" in line) == (width >= WIDEST_COLUMNS)
    assert "2 schedulers, slo; 2,400 requests, 6 in progress" in " ".join(text.split())


def test_reports_of_replicas_are_added_up() -> None:
    down = instance("engine-0", healthy=False, last_minute=NO_ANSWERS, **UNKNOWN)
    view = merged([report("a", instance("engine-0")), report("b", down)])
    engine = view.engines["engine-0"]
    assert (engine.up, engine.running, engine.placed) == (True, 3, 198)
    assert engine.e2e_s == [2.0, 4.0, 5.0]


def test_what_is_not_known_is_left_blank() -> None:
    view = merged([report("a", instance("engine-0", last_minute=NO_ANSWERS, **UNKNOWN))])
    assert row(text_of(table(view, 80), 80), "engine-0") == "engine-0 up 100%"


@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        (0.0004, 0.9994, "0 / 999 ms"),
        (0.5, 1.0, "0.50 / 1.00 s"),
        (12.34, 9.99, "12 / 9.99 s"),
    ],
)
def test_two_times_have_one_unit(one: float, other: float, text: str) -> None:
    assert pair(one, other) == text


def test_processes_that_are_not_ready_are_named(state: ClusterState) -> None:
    for component in state.components():
        component.state = "ready"
    state.parts["engine-1"].predictor.state = "restarting"
    state.processes["tagger"].restarts = 2
    state.parts["engine-1"].engine.state = "dead"
    text = text_of(render(state, merged([report("a", instance("engine-0"))]), 120), 120)
    assert row(text, "engine-0").startswith("engine-0 up 3 + 2")
    assert row(text, "engine-1") == "engine-1 dead 0% 0"
    assert "engine-1.predictor is restarting" in text
    assert "tagger is ready, restarted 2 times" in text
    assert "scheduler-0 is" not in text
    assert "emulated engines" in text


def test_vllm_engines_are_not_called_emulated(tmp_path: Path) -> None:
    shown = render(state_of(tmp_path, "vllm"), ClusterView(), 200)
    assert "emulated" not in text_of(shown, 200)


async def test_schedulers_that_do_not_answer_are_left_out(state: ClusterState) -> None:
    assert (await read(state)).replicas == []


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """Start a server that answers like this to a caller with the key; yields its address."""

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
    told = report("scheduler-1", instance("engine-0", healthy=False))
    with answering(200, json.dumps(told).encode()) as url:
        code, text = call(url, "--api-key", "secret")
    assert code == 0
    assert "1 scheduler, slo; 1,200 requests" in text
    assert row(text, "engine-0").startswith("engine-0 down 3 + 2 25%")
    assert "emulated engines" in text


def test_status_for_programs_is_json_of_what_the_table_shows() -> None:
    told = report("scheduler-1", instance("engine-0", kv_used_ratio=0.2512345))
    with answering(200, json.dumps(told).encode()) as url:
        code, text = call(url, "--api-key", "secret", "--json", "--url", "http://127.0.0.1:1")
    found = json.loads(text)
    assert code == 0
    assert (found["versions"], found["policies"]) == ([__version__], ["slo"])
    (engine,) = found["engines"]
    assert (engine["name"], engine["kv_used_ratio"]) == ("engine-0", 0.2512345)
    assert engine["predicted_e2e_s"] == [1.0, 5.0, 5.0]
    assert "http://127.0.0.1:1" in found["problems"][0]


def test_status_shows_an_upgrade_that_is_under_way() -> None:
    reports_of_both = [report("a"), report("b") | {"version": "0.0.9"}]
    shown = " ".join(text_of(table(merged(reports_of_both), 80), 80).split())
    assert f"2 schedulers of releases 0.0.9 and {__version__}" in shown


def test_status_asks_until_it_knows_all_replicas() -> None:
    draws = Random(7)
    names = ["a", "b", "c", "d"]

    def ask(_: str) -> tuple[int, bytes]:
        return 200, json.dumps(report(draws.choice(names), instance("engine-0"))).encode()

    found, wrong = reports(["http://any"], ask=ask)
    assert [each["replica_id"] for each in found] == names
    assert not wrong


def test_status_says_which_address_does_not_answer() -> None:
    told = report("scheduler-1", instance("engine-0"))
    with answering(200, json.dumps(told).encode()) as url:
        code, text = call(url, "--api-key", "secret", "--url", "http://127.0.0.1:1")
    assert code == 0
    assert "no scheduler answers at http://127.0.0.1:1" in text
    assert row(text, "engine-0").startswith("engine-0 up")


@pytest.mark.parametrize(
    ("status", "body", "more", "message"),
    [
        (200, b"{}", ("--api-key", "secret"), "gives no status"),
        (200, b"<html>", ("--api-key", "secret"), "gives no status"),
        (200, b'{"replica_id": "a", "instances": [{}]}', ("--api-key", "secret"), "release"),
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
