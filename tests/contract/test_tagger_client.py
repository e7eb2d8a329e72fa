"""The tagger's client: order, refusals, and a tagger that fails in between."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from pathlib import Path
from random import Random

import grpc
import pytest
from test_tagger import WAIT_S, FakeRegressor, running, until

from foretell.model import LengthEstimate
from foretell.services.scheduler.placing import tagging
from foretell.services.scheduler.placing.tagging import TaggerClient, open_channel
from foretell.services.tagger.problems import MAX_REQUESTS
from foretell.v1 import tagger_pb2, tagger_pb2_grpc

SEEDS = range(3)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tagging, "_PACE_S", 0.005)


def request(prompt: str, **fields: object) -> tagger_pb2.TagRequest:
    fields = {"model_name": "llama", "prompt_tokens": 100, **fields}
    return tagger_pb2.TagRequest(prompt=prompt, **fields)


class Client:
    """A `TaggerClient` and the estimates that it received, by key."""

    def __init__(self, asking: TaggerClient) -> None:
        self.asking = asking
        self.told: dict[str, LengthEstimate] = {}
        asking.listener = self._hear

    def ask(self, key: str, prompt: str, **fields: object) -> None:
        self.asking.ask(key, partial(request, prompt, **fields))

    async def answered(self, prompt: str) -> LengthEstimate:
        """The estimate for `prompt`, requested until the tagger answers."""
        keys = list[str]()
        async with asyncio.timeout(WAIT_S):
            while True:
                keys.append(f"{prompt} {len(self.told)} {len(keys)}")
                self.ask(keys[-1], prompt)
                await asyncio.sleep(0.02)
                for key in keys:
                    if key in self.told:
                        return self.told[key]

    def _hear(self, key: str, estimate: LengthEstimate) -> None:
        assert key not in self.told, "told twice"
        self.told[key] = estimate


@asynccontextmanager
async def client(address: str) -> AsyncIterator[Client]:
    async with open_channel(address) as channel:
        asking = TaggerClient(tagger_pb2_grpc.TaggerStub(channel))
        try:
            yield Client(asking)
        finally:
            asking.stop()


@pytest.mark.parametrize("seed", SEEDS)
async def test_nobody_gets_anothers_estimate_and_the_latest_get_theirs(
    tmp_path: Path, seed: int
) -> None:
    """Hints, history and the model answer at different times; only the model's are passed on."""
    rng, expected = Random(seed), dict[str, float]()
    async with running(tmp_path, FakeRegressor()) as tagger, client(tagger.ready["address"]) as own:
        await own.answered("hello")
        own.told.clear()
        for number in range(1, 301):
            kind = rng.choice(("hint", "model", "token ids"))
            key = f"{kind} {number}"
            if kind == "hint":
                own.ask(key, "x", hint_tokens=number)
            elif kind == "model":
                expected[key] = 10.0 * number
                own.ask(key, "x" * number)
            else:
                own.ask(key, "", max_tokens=number)
            if rng.random() < 0.2:
                await asyncio.sleep(rng.random() * 0.01)
        await until(lambda: key_of_last(expected) in own.told)
    told = {key: each.expected_tokens for key, each in own.told.items() if "hello" not in key}
    assert told.items() <= expected.items()


def key_of_last(expected: dict[str, float]) -> str:
    return list(expected)[-1]


async def test_what_is_wrong_is_refused_and_the_others_are_answered(tmp_path: Path) -> None:
    async with running(tmp_path, FakeRegressor()) as tagger, client(tagger.ready["address"]) as own:
        await own.answered("hello")
        own.ask("bad", "hi", model_name="")
        own.ask("good", "hello")
        await until(lambda: "good" in own.told)
        own.ask("long", "x" * 1_000_000)
        await until(lambda: "long" in own.told)
        assert "bad" not in own.told


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        ([request("x")] * (MAX_REQUESTS + 1), grpc.StatusCode.INVALID_ARGUMENT),
        ([request("x" * (9 << 20))], grpc.StatusCode.RESOURCE_EXHAUSTED),
    ],
    ids=["requests", "bytes"],
)
async def test_an_oversized_batch_is_refused(
    tmp_path: Path, batch: list[tagger_pb2.TagRequest], says: grpc.StatusCode
) -> None:
    async with running(tmp_path, FakeRegressor()) as tagger, client(tagger.ready["address"]) as own:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await tagger.stub.TagMany(tagger_pb2.TagBatch(requests=batch))
        assert refused.value.code() == says
        assert (await own.answered("hello")).expected_tokens == 50.0


async def test_who_waits_is_answered_once_and_hears_at_once_that_nothing_comes(
    tmp_path: Path,
) -> None:
    """The timeout is too long to be reached here."""
    regressor = FakeRegressor()
    async with running(tmp_path, regressor) as tagger, client(tagger.ready["address"]) as own:
        own.asking.wait_s = 10 * WAIT_S
        await own.answered("hello")
        own.told.clear()
        async with asyncio.timeout(WAIT_S):
            known = await own.asking.answer("a", partial(request, "hello"))
            assert known is not None
            assert known.expected_tokens == 50.0
            assert await own.asking.answer("hint", partial(request, "x", hint_tokens=9)) is None
            assert await own.asking.answer("bad", partial(request, "x", model_name="")) is None
            regressor.gate.clear()
            lost = asyncio.create_task(own.asking.answer("lost", partial(request, "lost")))
            await until(lambda: own.asking._called_s < inf)
            tagger.stop.set()
            assert await lost is None
            assert await own.asking.answer("away", partial(request, "hello")) is None
            regressor.gate.set()
        assert not own.told


async def test_a_tagger_that_stops_is_called_again(tmp_path: Path) -> None:
    regressor = FakeRegressor()
    async with running(tmp_path, regressor) as tagger, client(tagger.ready["address"]) as own:
        await own.answered("hello")
        tagger.stop.set()
        await until(lambda: not Path(f"{tmp_path}/s").exists())
        own.ask("nobody", "hello")
        await until(lambda: own.asking._calling is None)
        (tmp_path / "ready").unlink()
        async with running(tmp_path, regressor):
            assert (await own.answered("hello")).expected_tokens == 50.0
        assert "nobody" not in own.told


async def test_a_hanging_tagger_is_given_up_and_called_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tagging, "_LOST_S", 0.2)
    regressor = FakeRegressor()
    async with running(tmp_path, regressor) as tagger, client(tagger.ready["address"]) as own:
        await own.answered("hello")
        regressor.gate.clear()
        own.ask("lost", "lost")
        await until(lambda: own.asking._calling is None)
        regressor.gate.set()
        assert (await own.answered("hi")).expected_tokens == 20.0
        assert "lost" not in own.told


async def test_a_slow_tagger_is_asked_about_the_latest_alone(tmp_path: Path) -> None:
    regressor = FakeRegressor()
    async with running(tmp_path, regressor) as tagger, client(tagger.ready["address"]) as own:
        await own.answered("hello")
        regressor.gate.clear()
        own.ask("first", "first")
        await until(lambda: own.asking._called_s < inf)
        asked = len(regressor.batches)
        for number in range(1000):
            own.ask(str(number), "x")
        regressor.gate.set()
        await until(lambda: "999" in own.told)
        assert sum(map(len, regressor.batches[asked + 1 :])) <= 2 * tagging._MOST_TOGETHER
        assert "first" in own.told
        assert "500" not in own.told


@asynccontextmanager
async def tagger_process(folder: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    ready_file, address = folder / "ready", f"unix://{folder}/s"
    flags = (f"--listen={address}", f"--ready-file={ready_file}")
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "foretell.services.tagger", *flags
    )
    try:
        await until(ready_file.exists)
        yield child, address
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()
        ready_file.unlink(missing_ok=True)


async def test_a_killed_tagger_is_found_again(tmp_path: Path) -> None:
    async with tagger_process(tmp_path) as (child, address), client(address) as own:
        assert (await own.answered("hello")).source == "model"
        assert os.getpriority(os.PRIO_PROCESS, child.pid) == 19, "nobody waits for it"
        for number in range(200):
            own.ask(str(number), f"x {number}")
            if number == 100:
                child.kill()
            await asyncio.sleep(0.001)
        await child.wait()
        (tmp_path / "ready").unlink()
        async with tagger_process(tmp_path):
            assert (await own.answered("hello")).source == "model"


async def test_a_stopped_tagger_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tagger_process(tmp_path) as (child, address), client(address) as own:
        await own.answered("hello")
        os.kill(child.pid, signal.SIGSTOP)
        monkeypatch.setattr(tagging, "_LOST_S", 0.2)
        for number in range(100):
            own.ask(f"s{number}", "x" * 5000)
        await until(lambda: own.asking._calling is None)
        monkeypatch.setattr(tagging, "_LOST_S", WAIT_S)
        os.kill(child.pid, signal.SIGCONT)
        assert (await own.answered("hello")).source == "model"
