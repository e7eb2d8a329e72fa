"""`foretell run-batch` against a scheduler: answers in order, no line done twice for nothing."""

import asyncio
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import pytest
from engines import MODEL, Exchange, answer, engines
from rich.console import Console
from schedulers import WAIT_S, running, until
from typer.testing import CliRunner

from cli.main import app
from foretell.batch.release import PLAIN_WINDOW
from foretell.offline.feed import Sequential
from foretell.offline.work import WorkModel
from services.batch.store import Store
from tools.batch.run import run_batch
from tools.local import offline
from tools.local.state import ClusterState, Component
from tools.local.table import render
from tools.order.file import read_lines
from tools.order.judge import Judged, Watched
from tools.progress import Show
from tools.view.cluster import ClusterView

PROFILE = "H100/Llama-3.1-8B"
WORK = WorkModel(60e-6, 0.0, 60e-6, 75.6e-9, 9.27e-3)
ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def write_input(path: Path, prompts: Sequence[object]) -> None:
    with path.open("w") as file:
        for number, prompt in enumerate(prompts):
            body = {"model": MODEL, "prompt": prompt}
            line = {"custom_id": f"c{number}", "method": "POST", "url": "/v1/completions"}
            file.write(json.dumps({**line, "body": body}) + "\n\n")


async def started(folder: Path, url: str) -> asyncio.subprocess.Process:
    files = ("-i", str(folder / "in.jsonl"), "-o", str(folder / "out.jsonl"))
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli.main", "run-batch", *files, "--endpoint", url),
        env=ENVIRONMENT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def test_it_goes_on_after_a_kill_and_keeps_the_order(tmp_path: Path) -> None:
    prompts = [f"p{number}" for number in range(12)]
    write_input(tmp_path / "in.jsonl", prompts)
    held = asyncio.Event()

    async def first_half(exchange: Exchange) -> None:
        number = int(exchange.received.body["prompt"][1:])
        if number == 3:
            await exchange.whole(400, b'{"error": {"message": "not this one"}}')
            return
        if number >= 6:
            await held.wait()
        await answer(exchange)

    async with engines(first_half) as (engine,), running(tmp_path, [engine]) as scheduler:
        killed = await started(tmp_path, scheduler.url)
        await until(lambda: len(engine.received) > 6)
        folder = tmp_path / "out.jsonl.unfinished"

        def done() -> int:
            store = Store(folder)
            (batch,) = store.open_batches()
            store.close()
            return batch.counts.completed + batch.counts.failed

        await until(lambda: done() == 6)
        killed.kill()
        await killed.communicate()
        assert not (tmp_path / "out.jsonl").exists()
        held.set()
        before = len(engine.received)
        again = await started(tmp_path, scheduler.url)
        async with asyncio.timeout(3 * WAIT_S):
            said, errors = await again.communicate()
        assert again.returncode == 0, errors.decode()
        assert b"11 completed, 1 failed" in said
        sent = [received.body["prompt"] for received in engine.received[before:]]
        assert sorted(sent) == sorted(prompts[6:]), "what was done is not done again"
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [each["custom_id"] for each in found] == [f"c{number}" for number in range(12)]
    assert [each["response"]["status_code"] for each in found] == [200] * 3 + [400] + [200] * 8
    assert not list(tmp_path.glob("out.jsonl.*"))  # noqa: ASYNC240


async def test_an_endpoint_that_is_no_scheduler_gets_many_requests_at_once(tmp_path: Path) -> None:
    write_input(tmp_path / "in.jsonl", [f"p{number}" for number in range(PLAIN_WINDOW + 8)])
    held = asyncio.Event()

    async def hold(exchange: Exchange) -> None:
        await held.wait()
        await answer(exchange)

    async with engines(hold) as (engine,):
        run = await started(tmp_path, engine.url)
        await until(lambda: len(engine.received) == PLAIN_WINDOW)
        held.set()
        async with asyncio.timeout(3 * WAIT_S):
            said, errors = await run.communicate()
        assert run.returncode == 0, errors.decode()
        assert f"{PLAIN_WINDOW + 8} completed".encode() in said


async def test_requests_are_sent_in_the_order_that_is_done_soonest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The input has empty lines and one request more than the order knows of, which goes first."""
    prompts = [f"p{number}" for number in range(9)]
    write_input(tmp_path / "in.jsonl", prompts)

    def judged(path: Path, _: str) -> Judged:
        lines = [line for line, _ in read_lines(path)]
        sent = [8, 2, 5, 0, 7, 1, 4, 3]
        found = {"soonest": "blend", "speed_up_over_fcfs": 1.25}
        found |= {"density": 1.31, "sharing_ratio": 0.35}
        return Judged(lines, {"blend": Watched(Sequential(()), WORK, sent, [])}, found)

    monkeypatch.setattr("tools.order.judge.judged_file", judged)
    async with engines(answer) as (engine,), running(tmp_path, [engine]) as scheduler:
        found = await asyncio.to_thread(
            run_batch,
            tmp_path / "in.jsonl",
            tmp_path / "out.jsonl",
            [scheduler.url],
            concurrency=1,
            profile=PROFILE,
        )
    assert "'blend', simulated 1.25 x" in found.order
    assert "density 1.31, 35% of prompts shared" in found.order
    sent = [received.body["prompt"] for received in engine.received]
    assert sent == [f"p{number}" for number in (6, 8, 2, 5, 0, 7, 1, 4, 3)]
    answers = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [each["custom_id"] for each in answers] == [f"c{number}" for number in range(9)]


async def test_pace_sharing_and_end_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last request is held until the end is foretold, for which a few seconds suffice."""
    write_input(tmp_path / "in.jsonl", [f"p{number}" for number in range(16)])
    shown: list[str] = []

    @contextmanager
    def recorded(first: str) -> Iterator[Show]:
        yield lambda what, done, total: shown.append(what)

    async def half_cached(exchange: Exchange) -> None:
        if exchange.received.body["prompt"] == "p15":
            await until(lambda: any("done by" in each for each in shown))
        usage = {"prompt_tokens": 40, "completion_tokens": 20}
        usage_of_cache = {"prompt_tokens_details": {"cached_tokens": 20}}
        await exchange.whole(200, json.dumps({"usage": usage | usage_of_cache}).encode())

    monkeypatch.setattr("tools.batch.run.showing", recorded)
    async with engines(half_cached) as (engine,), running(tmp_path, [engine]) as scheduler:
        found = await asyncio.to_thread(
            run_batch,
            tmp_path / "in.jsonl",
            tmp_path / "out.jsonl",
            [scheduler.url],
            concurrency=16,
        )
    assert (found.completed, found.sharing_ratio) == (16, 0.5)
    said = re.compile(r"[\d,]+ tokens/s, 50% of prompts cached, done by \d\d:\d\d")
    assert any(said.fullmatch(each) for each in shown)


async def test_a_cluster_answers_a_file_and_the_next_one_the_rest(tmp_path: Path) -> None:
    """As `foretell up --offline` does; the first cluster stops while the rest is held."""
    source = tmp_path / "in.jsonl"
    prompts = [f"p{number}" for number in range(12)]
    write_input(source, prompts)
    held = asyncio.Event()
    said: list[str] = []

    async def first_half(exchange: Exchange) -> None:
        if int(exchange.received.body["prompt"][1:]) >= 6:
            await held.wait()
        await answer(exchange)

    def state_of(url: str) -> ClusterState:
        state = ClusterState(tmp_path / "cluster.json", url, emulated=True)
        state.processes["scheduler-0"] = Component("scheduler-0", "scheduler", url)
        return state

    async with engines(first_half) as (engine,), running(tmp_path, [engine]) as scheduler:
        state, stop = state_of(scheduler.url), asyncio.Event()
        answering = asyncio.create_task(offline.answer(source, state, said.append, stop))
        await until(lambda: state.offline.startswith("6 of 12 requests of in.jsonl answered, "))
        shown = Console(width=200, file=StringIO())
        shown.print(render(state, ClusterView(), 200))
        assert "offline: 6 of 12 requests" in shown.file.getvalue()
        stop.set()
        await answering
        held.set()
        before = len(engine.received)
        await offline.answer(source, state_of(scheduler.url), said.append, asyncio.Event())
        await offline.answer(source, state_of(scheduler.url), said.append, asyncio.Event())
    sent = [received.body["prompt"] for received in engine.received]
    assert sorted(sent[before:]) == sorted(prompts[6:]), "what was done is not done again"
    assert {received.body["vllm_xargs"]["class"] for received in engine.received} == {"offline"}
    assert "6 of 12 requests" in said[0]
    assert "12 completed, 0 failed" in said[1]
    assert "answered already" in said[2]
    answers = offline.answers_of(source).read_text().splitlines()
    assert [json.loads(each)["custom_id"] for each in answers] == [f"c{n}" for n in range(12)]


async def test_a_file_that_cannot_be_answered_is_said(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    write_input(source, ["p0"])
    state, said = ClusterState(tmp_path / "cluster.json", "", emulated=True), []
    state.processes["scheduler-0"] = Component("", "scheduler", "http://127.0.0.1:9")
    await offline.answer(source, state, said.append, asyncio.Event())
    assert "is not answered: http://127.0.0.1:9 cannot be asked" in said[0]


async def test_an_input_that_cannot_be_ordered_is_answered_as_it_stands(tmp_path: Path) -> None:
    write_input(tmp_path / "in.jsonl", ["p0", [1, "no token"], "p2"])
    async with engines(answer) as (engine,), running(tmp_path, [engine]) as scheduler:
        found = await asyncio.to_thread(
            run_batch,
            tmp_path / "in.jsonl",
            tmp_path / "out.jsonl",
            [scheduler.url],
            concurrency=1,
            profile=PROFILE,
        )
    assert "in the order of the file" in found.order
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 3


def test_a_profile_that_is_none_is_refused(tmp_path: Path) -> None:
    write_input(tmp_path / "in.jsonl", ["p0"])
    files = ["-i", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl")]
    found = CliRunner().invoke(app, ["run-batch", *files, "--order", "blend", "--profile", "no/x"])
    assert found.exit_code == 1
    assert "run-batch: " in str(found.exception)
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "has no requests"),
        ("nothing\n", "the first line is no request"),
        ('{"url": "/v1/audio"}\n', "'url' must be one of"),
        ('{"url": "/v1/completions"}\n', "cannot be asked"),
    ],
)
def test_what_stands_in_the_way_is_said(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "in.jsonl").write_text(content)
    files = ["-i", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl")]
    nobody = "http://127.0.0.1:9"
    found = CliRunner().invoke(app, ["run-batch", *files, "--endpoint", nobody])
    assert found.exit_code == 1
    assert said in str(found.exception)
