"""`foretell run-batch` against a scheduler: answers in order, no line repeated without need."""

import asyncio
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from engines import MODEL, Exchange, answer, engines
from schedulers import WAIT_S, running, until
from typer.testing import CliRunner

from foretell.batch.release import PLAIN_WINDOW
from foretell.batch.states import Batch
from foretell.cli.main import app
from foretell.services.batch.ordering import FEWEST_LINES, Ordering
from foretell.services.batch.store import BatchStore
from foretell.tools.batch.run import Outcome, answer_file

PROFILE = "H100/Llama-3.1-8B"
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
        *(sys.executable, "-m", "foretell.cli.main", "run-batch", *files, "--endpoint", url),
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
            store = BatchStore(folder)
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


@contextmanager
def _ordering(monkeypatch: pytest.MonkeyPatch) -> Iterator[asyncio.Event]:
    """An event of the running loop, set when the search for an order has ended."""
    loop, said = asyncio.get_running_loop(), asyncio.Event()
    order = Ordering._order

    async def noticed(self: Ordering, batch: Batch) -> None:
        await order(self, batch)
        loop.call_soon_threadsafe(said.set)

    monkeypatch.setattr(Ordering, "_order", noticed)
    yield said
    said.set()  # or a failing test would wait for its answers


async def test_requests_that_begin_alike_are_sent_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request is sent before the order is known; the others go one text after the other."""
    texts = [f"On text {text}: " + f"w{text} " * 200 for text in range(3)]
    asked = [f"{texts[number % 3]}why {number}?" for number in range(2 * FEWEST_LINES)]
    found, sent = await _ordered(tmp_path, monkeypatch, asked, "")
    assert "sent in order 'dfs' (9" in found.order
    changes = sum(one[:12] != other[:12] for one, other in pairwise(sent[1:]))
    assert changes <= 3, "in the order of the file each is another text than the one before"


async def test_the_order_is_the_one_that_is_done_soonest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [f"why {number}?" for number in range(2 * FEWEST_LINES)]
    found, _ = await _ordered(tmp_path, monkeypatch, asked, PROFILE)
    assert re.search(r"order '\w+', simulated 1\.\d\d x the file's order \(density", found.order)


async def test_an_input_that_cannot_be_ordered_is_answered_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [f"p{number}" for number in range(2 * FEWEST_LINES)]
    found, sent = await _ordered(tmp_path, monkeypatch, [*asked, [1, "no token"]], PROFILE)
    assert "in the order of the file" in found.order
    assert sent == asked, "no engine is asked for the last"


def _unseen(what: str, done: int, total: int) -> None:
    """Show no progress bar."""


async def _ordered(
    folder: Path, monkeypatch: pytest.MonkeyPatch, prompts: Sequence[object], profile: str
) -> tuple[Outcome, list[Any]]:
    """The outcome of `prompts`, and the order in which they were sent, one at a time. The first
    answer is held until the search for an order has ended."""
    write_input(folder / "in.jsonl", prompts)
    with _ordering(monkeypatch) as said:

        async def hold(exchange: Exchange) -> None:
            await said.wait()
            await answer(exchange)

        async with engines(hold) as (engine,), running(folder, [engine]) as scheduler:
            files = folder / "in.jsonl", folder / "out.jsonl"
            given = *files, [scheduler.url], _unseen
            answered = partial(answer_file, concurrency=1, profile=profile)
            found = await asyncio.to_thread(answered, *given)
    answers = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert [each["custom_id"] for each in answers] == [f"c{n}" for n in range(len(prompts))]
    return found, [received.body["prompt"] for received in engine.received]


async def test_pace_sharing_and_end_are_shown(tmp_path: Path) -> None:
    """The last request is held until an end time is shown, which takes a few seconds."""
    write_input(tmp_path / "in.jsonl", [f"p{number}" for number in range(16)])
    shown: list[str] = []

    def show(what: str, done: int, total: int) -> None:
        shown.append(what)

    async def half_cached(exchange: Exchange) -> None:
        if exchange.received.body["prompt"] == "p15":
            await until(lambda: any("done by" in each for each in shown))
        usage = {"prompt_tokens": 40, "completion_tokens": 20}
        usage_of_cache = {"prompt_tokens_details": {"cached_tokens": 20}}
        await exchange.whole(200, json.dumps({"usage": usage | usage_of_cache}).encode())

    async with engines(half_cached) as (engine,), running(tmp_path, [engine]) as scheduler:
        found = await asyncio.to_thread(
            answer_file,
            tmp_path / "in.jsonl",
            tmp_path / "out.jsonl",
            [scheduler.url],
            show,
            concurrency=16,
        )
    assert (found.completed, found.sharing_ratio) == (16, 0.5)
    said = re.compile(r"[\d,]+ tokens/s, 50% of prompts cached, done by \d\d:\d\d")
    assert any(said.fullmatch(each) for each in shown)


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
