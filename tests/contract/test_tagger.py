"""The tagger over a real socket: its answers, batches and fallbacks."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from foretell.config import TaggerSettings
from foretell.length import QUANTILE_LEVELS
from foretell.services.tagger.models import Regressor, RegressorModel, ServedLengthModel
from foretell.services.tagger.problems import MAX_OBSERVATIONS
from foretell.services.tagger.server import LIMITS, TaggerLimits, serve
from foretell.v1 import tagger_pb2, tagger_pb2_grpc

WAIT_S = 30.0


class FakeRegressor:
    """Predicts ten tokens per character; holds every batch until `gate` is set."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.failing = False

    def predict(self, prompts: Sequence[str]) -> list[float]:
        self.batches.append(list(prompts))
        assert self.gate.wait(WAIT_S)
        if self.failing:
            raise RuntimeError("out of memory")
        return [10.0 * len(prompt) for prompt in prompts]


class Tagger:
    """A client of one running tagger."""

    def __init__(
        self, channel: grpc.aio.Channel, ready: dict[str, object], stop: asyncio.Event
    ) -> None:
        self.stub = tagger_pb2_grpc.TaggerStub(channel)
        self.ready = ready
        self.stop = stop

    async def tag(
        self, prompt: str = "", timeout: float | None = None, **fields: object
    ) -> tagger_pb2.LengthEstimate:
        fields = {"model_name": "llama", "prompt_tokens": 100, **fields}
        return await self.stub.Tag(tagger_pb2.TagRequest(prompt=prompt, **fields), timeout=timeout)

    async def observe(self, output_tokens: int, *, times: int, censored: bool = False) -> None:
        observation = tagger_pb2.Observation(
            model_name="llama", prompt_tokens=100, output_tokens=output_tokens, censored=censored
        )
        await self.stub.Observe(tagger_pb2.ObserveRequest(observations=[observation] * times))

    async def metric(self, line_start: str) -> float:
        url = f"http://127.0.0.1:{self.ready['metrics_port']}/metrics"
        text = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read().decode())
        return sum(float(x.split()[-1]) for x in text.splitlines() if x.startswith(line_start))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)


def running(
    folder: Path, regressor: Regressor | None = None, limits: TaggerLimits = LIMITS, **changes: Any
) -> AbstractAsyncContextManager[Tagger]:
    """A tagger in this process, on a unix socket."""
    model = RegressorModel(regressor, limits.max_prompt_chars) if regressor else None
    return running_model(folder, model, limits, **changes)


@asynccontextmanager
async def running_model(
    folder: Path,
    model: ServedLengthModel[Any] | None,
    limits: TaggerLimits = LIMITS,
    **changes: Any,
) -> AsyncIterator[Tagger]:
    """A tagger in this process with any kind of model."""
    ready_file = folder / "ready"
    values = {"listen": f"unix://{folder}/s", "metrics_port": 0, **changes}
    settings = TaggerSettings(ready_file=str(ready_file), **values)
    stop = asyncio.Event()
    task = asyncio.create_task(serve(settings, model, stop, limits))
    try:
        await until(lambda: ready_file.exists() or task.done())
        if task.done():
            task.result()
        ready = json.loads(ready_file.read_text())
        async with grpc.aio.insecure_channel(ready["address"]) as channel:
            yield Tagger(channel, ready, stop)
    finally:
        stop.set()
        await task


async def test_a_hint_wins_over_every_other_source(tmp_path: Path) -> None:
    regressor = FakeRegressor()
    async with running(tmp_path, regressor) as tagger:
        answer = await tagger.tag("hello", hint_tokens=42)
        assert (answer.expected_tokens, answer.source) == (42.0, "hint")
        answer = await tagger.tag("hello", hint_tokens=42, max_tokens=7)
        assert answer.expected_tokens == 7.0
    assert regressor.batches == []


async def test_history_takes_over_from_the_prior(tmp_path: Path) -> None:
    async with running(tmp_path) as tagger:
        assert (await tagger.tag("hello")).source == "prior"
        await tagger.observe(100, times=20)
        answer = await tagger.tag("hello")
        assert answer.source == "history"
        assert answer.expected_tokens == pytest.approx(100.0)
        assert [q.tokens for q in answer.quantiles] == [100.0] * len(QUANTILE_LEVELS)
        assert (await tagger.tag("hello", max_tokens=64)).expected_tokens == pytest.approx(64.0)
        assert await tagger.metric("foretell_tagger_observations_total") == 20.0
        assert await tagger.metric('foretell_tagger_requests_total{source="history"}') == 2.0
        assert await tagger.metric("foretell_tagger_latency_seconds_count") == 3.0


async def test_censored_observations_count_as_longer(tmp_path: Path) -> None:
    async with running(tmp_path) as tagger:
        await tagger.observe(100, times=10)
        await tagger.observe(300, times=10, censored=True)
        answer = await tagger.tag(max_tokens=300)
        # The survival function S is 1 up to 100 and 1/2 up to 300.
        assert answer.expected_tokens == pytest.approx(200.0)
        assert (await tagger.tag()).expected_tokens > 300.0


async def test_concurrent_calls_share_an_inference(tmp_path: Path) -> None:
    regressor = FakeRegressor()
    regressor.gate.clear()
    async with running(tmp_path, regressor, TaggerLimits(max_batch=8, batch_s=1e3)) as tagger:
        first = asyncio.create_task(tagger.tag("first"))
        await until(lambda: len(regressor.batches) == 1)
        others = asyncio.gather(*(tagger.tag("x" * n) for n in range(1, 9)))
        while await tagger.metric("foretell_tagger_queue_depth") < 8.0:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        regressor.gate.set()
        await first
        answers = await others
        assert await tagger.metric("foretell_tagger_batch_size_sum") == 9.0
        assert await tagger.metric("foretell_tagger_batch_size_count") == 2.0
    assert [len(batch) for batch in regressor.batches] == [1, 8]
    assert [answer.expected_tokens for answer in answers] == [10.0 * n for n in range(1, 9)]
    assert {answer.source for answer in answers} == {"model"}


async def test_a_lone_call_waits_for_no_others(tmp_path: Path) -> None:
    regressor = FakeRegressor()
    async with running(tmp_path, regressor) as tagger:
        answer = await tagger.tag("hello", timeout=WAIT_S)
        assert (answer.expected_tokens, answer.source) == (50.0, "model")
        assert (await tagger.tag("hello", max_tokens=20)).expected_tokens == 20.0
        assert (await tagger.tag("")).source == "prior", "token ids have no text to read"


async def test_a_full_queue_is_answered_from_history(tmp_path: Path) -> None:
    regressor = FakeRegressor()
    regressor.gate.clear()
    async with running(tmp_path, regressor, TaggerLimits(max_batch=1, max_queue=2)) as tagger:
        first = asyncio.create_task(tagger.tag("first"))
        await until(lambda: len(regressor.batches) == 1)
        others = [asyncio.create_task(tagger.tag("other")) for _ in range(5)]
        await until(lambda: sum(task.done() for task in others) == 3)
        assert {task.result().source for task in others if task.done()} == {"prior"}
        assert await tagger.metric("foretell_tagger_queue_depth") == 2.0
        assert await tagger.metric('foretell_tagger_model_misses_total{reason="queue_full"}') == 3.0
        regressor.gate.set()
        sources = [(await task).source for task in (first, *others)]
        assert sorted(sources) == ["model"] * 3 + ["prior"] * 3
        assert await tagger.metric("foretell_tagger_queue_depth") == 0.0


async def test_a_failing_model_is_replaced_by_history(tmp_path: Path) -> None:
    regressor = FakeRegressor()
    regressor.failing = True
    async with running(tmp_path, regressor) as tagger:
        assert (await tagger.tag("hello")).source == "prior"
        assert await tagger.metric('foretell_tagger_model_misses_total{reason="error"}') == 1.0
        regressor.failing = False
        assert (await tagger.tag("hello")).source == "model"


async def test_long_prompts_are_tagged_by_head_and_tail(tmp_path: Path) -> None:
    regressor = FakeRegressor()
    async with running(tmp_path, regressor, TaggerLimits(max_prompt_chars=10)) as tagger:
        await tagger.tag("HEAD." + "x" * 100_000 + ".TAIL")
    assert regressor.batches == [["HEAD..TAIL"]]


async def test_stopping_answers_those_who_wait(tmp_path: Path) -> None:
    regressor = FakeRegressor()
    regressor.gate.clear()
    async with running(tmp_path, regressor) as tagger:
        waiting = asyncio.create_task(tagger.tag("hello"))
        await until(lambda: len(regressor.batches) == 1)
        tagger.stop.set()
        assert (await waiting).source == "prior"
        regressor.gate.set()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"model_name": ""}, "model_name"),
        ({"model_name": "x" * 257}, "model_name"),
        ({"prompt_tokens": 0}, "prompt"),
        ({"hint_tokens": 1 << 31}, "hint_tokens"),
    ],
)
async def test_a_bad_tag_request_names_the_field(
    tmp_path: Path, fields: dict[str, object], named: str
) -> None:
    async with running(tmp_path) as tagger:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await tagger.tag(**fields)
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error.value.details().startswith(named)
        assert (await tagger.tag("hello")).source == "prior"


@pytest.mark.parametrize(
    ("observations", "named"),
    [
        ([{"model_name": "a"}, {"model_name": ""}], "observations[1].model_name"),
        ([{"model_name": "a", "output_tokens": 1 << 30}], "observations[0].output_tokens"),
        ([{"model_name": "a"}] * (MAX_OBSERVATIONS + 1), "observations"),
    ],
)
async def test_bad_observations_are_refused_as_a_whole(
    tmp_path: Path, observations: list[dict[str, object]], named: str
) -> None:
    async with running(tmp_path) as tagger:
        request = tagger_pb2.ObserveRequest(
            observations=[tagger_pb2.Observation(**fields) for fields in observations]
        )
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await tagger.stub.Observe(request)
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error.value.details().startswith(named)
        assert await tagger.metric("foretell_tagger_observations_total") == 0.0


async def test_an_oversized_message_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as tagger:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await tagger.tag("x" * (9 << 20))
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await tagger.tag("x" * (5 << 20))).source == "prior"


async def test_a_port_is_not_shared(tmp_path: Path) -> None:
    async with running_model(tmp_path, None, listen="", host="127.0.0.1", port=0) as tagger:
        port = int(str(tagger.ready["address"]).rsplit(":", 1)[1])
        with pytest.raises(SystemExit, match=f"cannot listen on 127.0.0.1:{port}"):
            await serve(TaggerSettings(port=port), None, asyncio.Event())


@pytest.fixture
def process(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """`python -m foretell.services.tagger` on a free TCP port, and its address."""
    ready_file = tmp_path / "ready"
    command = [sys.executable, "-m", "foretell.services.tagger", "--ready-file", str(ready_file)]
    env = {**os.environ, "FORETELL_TAGGER_THREADS": "2"}
    child = subprocess.Popen([*command, "--port", "0"], env=env)
    try:
        deadline_s = time.monotonic() + WAIT_S
        while not ready_file.exists():
            assert child.poll() is None, f"the tagger ended with {child.returncode}"
            assert time.monotonic() < deadline_s, "the tagger did not become ready"
            time.sleep(0.02)
        yield child, json.loads(ready_file.read_text())["address"]
    finally:
        child.kill()
        child.wait()


def test_the_process_serves_and_ends_on_sigterm(
    process: tuple[subprocess.Popen[bytes], str],
) -> None:
    child, address = process
    with grpc.insecure_channel(address) as channel:
        stub = tagger_pb2_grpc.TaggerStub(channel)
        answer = stub.Tag(tagger_pb2.TagRequest(model_name="m", prompt="hi"), timeout=WAIT_S)
        assert answer.source == "model", "a length model ships"
        health = channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=WAIT_S)
        assert health == b"\x08\x01", "HealthCheckResponse(status=SERVING)"
    child.send_signal(signal.SIGTERM)
    assert child.wait(WAIT_S) == 0


def test_a_checkpoint_that_is_not_there_ends_the_start() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "foretell.services.tagger", "--checkpoint", "/nowhere/at/all"],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr.strip() == "tagger checkpoint '/nowhere/at/all' is not a folder"
