"""The tagger's stream and its client: order, refusals, and a tagger that breaks in the midst."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
from test_tagger import WAIT_S, FakeRegressor, running, until

from foretell.model import LengthEstimate
from foretell.v1 import tagger_pb2
from services.process.frames import FrameStream, frames_address, hello_of, open_frames
from services.process.traffic import OPEN
from services.scheduler.placing import tagging
from services.scheduler.placing.peers import NoAnswer
from services.scheduler.placing.tagging import TaggerClient
from services.tagger.problems import MAX_REQUESTS

SEEDS = range(3)


def request(prompt: str, **fields: object) -> tagger_pb2.TagRequest:
    fields = {"model_name": "llama", "prompt_tokens": 100, **fields}
    return tagger_pb2.TagRequest(prompt=prompt, **fields)


@asynccontextmanager
async def client(address: str, within_s: float = WAIT_S) -> AsyncIterator[TaggerClient]:
    asking = TaggerClient(address, within_s)
    try:
        yield asking
    finally:
        await asking.close()


async def answered(asking: TaggerClient, prompt: str) -> LengthEstimate:
    """The estimate, however often the tagger is away before."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                return await asking.estimate(request(prompt))
            except NoAnswer:
                await asyncio.sleep(0.02)


@pytest.mark.parametrize("seed", SEEDS)
async def test_nobody_gets_anothers_estimate(tmp_path: Path, seed: int) -> None:
    """Hints, history and the model answer at different times; some callers leave meanwhile."""
    rng = Random(seed)
    asked: list[tuple[asyncio.Future[LengthEstimate], float, str]] = []
    async with running(tmp_path, FakeRegressor()) as tagger, client(tagger.ready["address"]) as own:
        for number in range(1, 301):
            kind = rng.choice(("hint", "model", "token ids"))
            if kind == "hint":
                message, expected = request("x", hint_tokens=number), float(number)
            elif kind == "model":
                message, expected = request("x" * number), 10.0 * number
            else:
                message, expected = request("", max_tokens=number), 0.0
            asked.append((own.estimate(message), expected, kind))
            if rng.random() < 0.1:
                rng.choice(asked)[0].cancel()
            if rng.random() < 0.2:
                await asyncio.sleep(rng.random() * 0.01)
        answers = await asyncio.gather(*(future for future, _, _ in asked), return_exceptions=True)
    for answer, (future, expected, kind) in zip(answers, asked, strict=True):
        if future.cancelled():
            continue
        assert isinstance(answer, LengthEstimate), answer
        if kind == "token ids":
            assert answer.source == "prior"
        else:
            assert answer.source == kind
            assert answer.expected_tokens == expected


async def test_what_is_wrong_is_refused_and_the_others_are_answered(tmp_path: Path) -> None:
    async with running(tmp_path) as tagger, client(tagger.ready["address"]) as own:
        good, bad = own.estimate(request("hello")), own.estimate(request("hi", model_name=""))
        with pytest.raises(NoAnswer, match="model_name"):
            await bad
        assert (await good).source == "prior"
        long = await own.estimate(request("x" * 1_000_000))
        assert long.source == "prior"


class _ByHand(FrameStream):
    """A scheduler's end of the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[bytes] = []
        self.over = asyncio.Event()

    def received(self, payload: bytes) -> None:
        self.frames.append(payload)

    def ended(self) -> None:
        self.over.set()


async def test_a_client_that_does_not_read_is_not_read_from(tmp_path: Path) -> None:
    """Its estimates take memory until it does: no more than those of a bounded number."""
    async with running(tmp_path) as tagger:
        own = await open_frames(_ByHand, frames_address(tagger.ready["address"]), OPEN)
        assert isinstance(own, _ByHand)
        assert own._transport is not None
        own._transport.pause_reading()
        own.send(hello_of(OPEN))
        sent = 0
        while not own.congested:
            batch = tagger_pb2.TagBatch(first=sent, requests=[request("x")] * MAX_REQUESTS)
            own.send(batch.SerializeToString())
            sent += MAX_REQUESTS
            await asyncio.sleep(0)
        own._transport.resume_reading()

        def answered() -> int:
            batches = map(tagger_pb2.EstimateBatch.FromString, own.frames)
            return sum(len(each.numbers) for batch in batches for each in batch.estimates)

        await until(lambda: answered() == sent)
        own.close()


@pytest.mark.parametrize(
    "batch",
    [
        tagger_pb2.TagBatch(requests=[request("x")] * (MAX_REQUESTS + 1)),
        tagger_pb2.TagBatch(requests=[request("x" * (9 << 20))]),
    ],
    ids=["requests", "bytes"],
)
async def test_an_oversized_message_ends_its_stream_alone(
    tmp_path: Path, batch: tagger_pb2.TagBatch
) -> None:
    async with running(tmp_path) as tagger, client(tagger.ready["address"]) as own:
        other = await open_frames(_ByHand, frames_address(tagger.ready["address"]), OPEN)
        assert isinstance(other, _ByHand)
        other.send(hello_of(OPEN))
        other.send(batch.SerializeToString())
        await asyncio.wait_for(other.over.wait(), WAIT_S)
        assert not other.frames
        assert (await own.estimate(request("hello"))).source == "prior"


async def test_a_tagger_that_stops_answers_first_and_is_called_again(tmp_path: Path) -> None:
    regressor = FakeRegressor()
    regressor.gate.clear()
    async with running(tmp_path, regressor) as tagger, client(tagger.ready["address"]) as own:
        waiting = own.estimate(request("hello"))
        await until(lambda: len(regressor.batches) == 1)
        tagger.stop.set()
        assert (await waiting).source == "prior"
        regressor.gate.set()
        await asyncio.sleep(0.05)
        with pytest.raises(NoAnswer):
            await own.estimate(request("hello"))
        (tmp_path / "ready").unlink()
        async with running(tmp_path, regressor):
            assert (await answered(own, "hello")).source == "model"


async def test_a_slow_tagger_is_given_up_and_called_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tagging, "_LOST_S", 0.2)
    regressor = FakeRegressor()
    regressor.gate.clear()
    async with running(tmp_path, regressor) as tagger, client(tagger.ready["address"]) as own:
        with pytest.raises(NoAnswer):
            await own.estimate(request("hello"))
        regressor.gate.set()
        assert (await answered(own, "hi")).expected_tokens == 20.0


async def test_those_who_wait_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tagging, "_MOST_WAITING", 5)
    regressor = FakeRegressor()
    regressor.gate.clear()
    async with running(tmp_path, regressor) as tagger, client(tagger.ready["address"]) as own:
        futures = [own.estimate(request("x" * n)) for n in range(1, 8)]
        with pytest.raises(NoAnswer, match="too many"):
            await futures[5]
        regressor.gate.set()
        answers = await asyncio.gather(*futures[:5])
        assert [answer.expected_tokens for answer in answers] == [10.0, 20.0, 30.0, 40.0, 50.0]


@asynccontextmanager
async def tagger_process(folder: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    ready_file, address = folder / "ready", f"unix://{folder}/s"
    flags = (f"--listen={address}", f"--ready-file={ready_file}", "--model=none")
    child = await asyncio.create_subprocess_exec(sys.executable, "-m", "services.tagger", *flags)
    try:
        await until(ready_file.exists)
        yield child, address
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()
        ready_file.unlink(missing_ok=True)


@pytest.mark.parametrize("seed", SEEDS)
async def test_sigkill_under_load(tmp_path: Path, seed: int) -> None:
    """Everybody gets an estimate or is told that there is none; the next tagger is found."""
    rng = Random(seed)
    async with tagger_process(tmp_path) as (child, address), client(address) as own:
        await answered(own, "hello")
        futures = []
        for number in range(200):
            futures.append(own.estimate(request("x", hint_tokens=number + 1)))
            if number == 100:
                child.kill()
            await asyncio.sleep(rng.expovariate(1000.0))
        async with asyncio.timeout(WAIT_S):
            answers = await asyncio.gather(*futures, return_exceptions=True)
        for number, answer in enumerate(answers, 1):
            assert isinstance(answer, NoAnswer) or answer.expected_tokens == number
        assert isinstance(answers[-1], NoAnswer)
        await child.wait()
        (tmp_path / "ready").unlink()
        async with tagger_process(tmp_path):
            assert (await answered(own, "hello")).source == "prior"


async def test_sigstop_under_load(tmp_path: Path) -> None:
    async with tagger_process(tmp_path) as (child, address), client(address) as own:
        await answered(own, "hello")
        os.kill(child.pid, signal.SIGSTOP)
        futures = [own.estimate(request("x" * 5000)) for _ in range(100)]
        async with asyncio.timeout(WAIT_S):
            answers = await asyncio.gather(*futures, return_exceptions=True)
        assert all(isinstance(answer, NoAnswer) for answer in answers)
        os.kill(child.pid, signal.SIGCONT)
        assert (await answered(own, "hello")).source == "prior"
