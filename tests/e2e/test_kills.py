"""SIGKILL under load, with two schedulers and four emulated engines.

Only streams that a killed scheduler had begun are lost.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import load
import pytest
from cluster import Cluster, cluster
from mishaps import REQUESTS, await_predictions, busy, drive, model_of, truth, until_unbelieved

from foretell.services.process.hang import HangLimits

PAUSE_S = HangLimits().missed * HangLimits().answer_s / 4
"""Far shorter than the pause that the supervisor considers a hang."""
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    run_dir: Path = tmp_path_factory.mktemp("up")
    file = tmp_path_factory.mktemp("file") / "cluster.yaml"
    file.write_text("engines: [{kind: emulated, engines: 4, args: --speedup 2}]\n")
    with cluster(run_dir, f"--cluster={file}") as found:
        yield found


def test_without_mishap_everything_is_answered_and_labelled_emulated(running: Cluster) -> None:
    fates = asyncio.run(load.run(running.endpoint, model_of(running), REQUESTS, seed=1))
    assert not [fate.error for fate in fates if fate.error]
    assert [fate.text for fate in fates] == truth(running, fates)
    body = {"model": model_of(running), "prompt": "hello", "max_tokens": 3}
    answer = httpx.post(f"{running.endpoint}/v1/completions", json=body)
    assert answer.headers["x-foretell-emulated"] == "true"
    assert float(answer.headers["x-foretell-predicted-e2e-s"]) > 0


def test_a_killed_predictor_costs_no_request(running: Cluster) -> None:
    fates = drive(running, "engine-1.predictor", seed=2)
    assert not [fate.error for fate in fates if fate.error]
    await_predictions(running)


@pytest.mark.parametrize("victim", ["engine-1.predictor", "tagger", "scheduler-1"])
def test_who_hangs_for_a_while_costs_no_request(running: Cluster, victim: str) -> None:
    before = running.component(victim)

    async def mishap() -> None:
        await busy(running, victim)
        if victim.endswith(".predictor"):
            running.pause(victim)
            await until_unbelieved(running, victim)
            running.resume(victim)
        else:
            await running.pause_for(victim, PAUSE_S)

    fates = asyncio.run(
        load.run(running.endpoint, model_of(running), REQUESTS, seed=6, mishap=mishap)
    )
    assert not [fate.error for fate in fates if fate.error], running.logs()
    assert [fate.text for fate in fates] == truth(running, fates)
    await_predictions(running)
    after = running.component(victim)
    assert (after["pid"], after["restarts"]) == (before["pid"], before["restarts"])


def test_a_killed_scheduler_costs_only_streams_it_had_begun(running: Cluster) -> None:
    drive(running, "scheduler-0", seed=3)


def test_a_killed_engine_costs_no_request_and_no_stream(running: Cluster) -> None:
    fates = drive(running, "engine-2", seed=4)
    assert not [fate.error for fate in fates if fate.error], running.logs()
    assert [fate.text for fate in fates] == truth(running, fates)
    metrics = httpx.get(f"{running.endpoint}/metrics").text
    assert "foretell_continuations_total" in metrics


def test_a_killed_tagger_costs_no_request(running: Cluster) -> None:
    fates = drive(running, "tagger", seed=5)
    assert not [fate.error for fate in fates if fate.error]
