"""Without predictors or a tagger, or with lying ones, placements get worse but requests succeed."""

import asyncio
import json
import math
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from engines import WHOLE, answer, engines, gated
from schedulers import Scheduler, running, until
from scripted_peers import LOAD, Predictor, Tagger, foreign, serving

from foretell.services.scheduler.placing.lengths import open_model
from foretell.v1 import predictor_pb2, tagger_pb2

DEAD = "127.0.0.1:1"  # where nothing listens


def silent_predictor() -> Predictor:
    predictor = Predictor()
    predictor.silent = True
    return predictor


def lying_predictor(**fields: float) -> Predictor:
    predictor = Predictor()
    for name, value in fields.items():
        setattr(predictor.predicted, name, value)
    return predictor


class _Dead(AbstractAsyncContextManager[str]):
    async def __aenter__(self) -> str:
        return DEAD

    async def __aexit__(self, *_: object) -> None:
        return


SILENT = {
    "dead": _Dead,
    "mute": foreign,
    "babbling": lambda: foreign(b"220 mail.example.org ESMTP\r\n"),
    "hanging": lambda: serving(silent_predictor()),
    "undecodable": lambda: serving(None),
}


async def spread(scheduler: Scheduler, gate: asyncio.Event, count: int) -> Counter[str]:
    """The number of requests per engine, of `count` requests in progress at the same time."""
    work = [asyncio.create_task(scheduler.complete()) for _ in range(count)]
    await scheduler.until(lambda s: sum(i["outstanding"] for i in s["instances"]) == count)
    gate.set()
    responses = [await task for task in work]
    assert all(r.content == WHOLE for r in responses)
    assert not any("x-foretell-predicted-e2e-s" in r.headers for r in responses)
    return Counter(r.headers["x-foretell-instance"] for r in responses)


@pytest.mark.parametrize("kind", SILENT)
async def test_without_predictors_requests_are_spread_all_the_same(
    tmp_path: Path, kind: str
) -> None:
    gate = asyncio.Event()
    async with AsyncExitStack() as stack:
        both = await stack.enter_async_context(engines(gated(gate), gated(gate)))
        addresses = [await stack.enter_async_context(SILENT[kind]()) for _ in both]
        scheduler = await stack.enter_async_context(
            running(tmp_path, both, addresses, policy="predicted_latency")
        )
        assert await spread(scheduler, gate, 8) == {"engine-0": 4, "engine-1": 4}
        assert await scheduler.metric("foretell_degraded_total", missing="predictor") == 16
        await scheduler.until_metric("foretell_e2e_seconds_count", 8)
        assert await scheduler.metric("foretell_e2e_prediction_error_ratio_count") == 0
        assert not math.isnan(await scheduler.metric("foretell_e2e_seconds_sum"))


@pytest.mark.parametrize("policy", ["infaas", "llumnix_minus"])
@pytest.mark.parametrize("kind", SILENT)
async def test_without_loads_requests_are_spread_all_the_same(
    tmp_path: Path, kind: str, policy: str
) -> None:
    gate = asyncio.Event()
    async with AsyncExitStack() as stack:
        both = await stack.enter_async_context(engines(gated(gate), gated(gate)))
        addresses = [await stack.enter_async_context(SILENT[kind]()) for _ in both]
        scheduler = await stack.enter_async_context(
            running(tmp_path, both, addresses, policy=policy)
        )
        assert await spread(scheduler, gate, 6) == {"engine-0": 3, "engine-1": 3}
        assert await scheduler.metric("foretell_degraded_total", missing="predictor") == 12


async def test_the_one_who_answers_does_not_attract_everything(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with (
        engines(gated(gate), gated(gate)) as both,
        serving(Predictor()) as address,
        running(tmp_path, both, [address, DEAD], policy="predicted_latency") as scheduler,
    ):
        work = [asyncio.create_task(scheduler.complete()) for _ in range(8)]
        await scheduler.until(lambda s: sum(i["outstanding"] for i in s["instances"]) == 8)
        outstanding = [i["outstanding"] for i in (await scheduler.status())["instances"]]
        gate.set()
        assert all([(await task).content == WHOLE for task in work])
        assert min(outstanding) >= 3


async def test_who_never_can_is_not_chosen_and_poisons_no_metric(tmp_path: Path) -> None:
    async with (
        engines(answer, answer) as both,
        serving(lying_predictor(e2e_s=math.inf, ttft_s=math.inf)) as never,
        serving(Predictor()) as good,
        running(
            tmp_path,
            both,
            [never, good],
            policy="predicted_latency",
            request_log=str(tmp_path / "log"),
        ) as scheduler,
    ):
        for _ in range(4):
            headers = (await scheduler.complete()).headers
            assert headers["x-foretell-instance"] == "engine-1"
        both[1].health_status = 500
        await scheduler.until(lambda s: not s["instances"][1]["healthy"])
        response = await scheduler.complete()  # the bad engine is better than none
        assert response.headers["x-foretell-instance"] == "engine-0"
        await scheduler.until_metric("foretell_e2e_seconds_count", 5)
        assert await scheduler.metric("foretell_e2e_prediction_error_ratio_count") == 4
        await until(lambda: len((tmp_path / "log").read_text().splitlines()) == 5)
        for line in (tmp_path / "log").read_text().splitlines():
            json.loads(line, parse_constant=pytest.fail)


async def test_lies_about_the_end_are_not_learned(tmp_path: Path) -> None:
    liar = Predictor()
    liar.completed = predictor_pb2.Seen(
        ttft_s=math.inf, output_tokens=2**32 - 1, prompt_tokens=2**32 - 1
    )
    tagger = Tagger()

    async def nameless(exchange: object) -> None:
        await exchange.whole(200, b"{}")  # type: ignore[attr-defined]

    async with (
        engines(nameless) as (engine,),
        serving(liar) as address,
        serving(tagger) as tagger_address,
        running(
            tmp_path,
            [engine],
            [address],
            tagger=tagger_address,
            policy="predicted_latency",
            request_log=str(tmp_path / "log"),
        ) as scheduler,
    ):
        for stamp in (math.inf, math.nan, 1.0, 1e12):
            liar.completed.ttft_s = stamp
            assert (await scheduler.complete()).content == b"{}"
        await until(lambda: len((tmp_path / "log").read_text().splitlines()) == 4)
        assert await scheduler.metric("foretell_e2e_seconds_count") == 4
        assert await scheduler.metric("foretell_ttft_seconds_count") == 0
        assert tagger.observed == []


async def test_a_request_is_placed_at_once_and_the_tagger_corrects_its_length(
    tmp_path: Path,
) -> None:
    tagger, sidecar, gate = Tagger(expected_tokens=1.0), Predictor(), asyncio.Event()
    async with (
        engines(gated(gate)) as (engine,),
        serving(tagger) as address,
        serving(sidecar) as predictor,
        running(
            tmp_path, [engine], [predictor], tagger=address, policy="predicted_latency"
        ) as scheduler,
    ):
        work = asyncio.create_task(scheduler.complete(prompt="a\ud83d b", max_tokens=20))
        await scheduler.until_metric("foretell_lengths_revised_total", 1)
        assert 1 < sidecar.reserved[0].length.expected_tokens <= 20
        assert sidecar.reserved[0].length.source == "small_model"
        sent = engine.received[0].body["vllm_xargs"]["foretell_predicted_tokens"]
        assert sent == pytest.approx(sidecar.reserved[0].length.expected_tokens, abs=0.1)
        assert tagger.asked[0].prompt == "a? b"
        gate.set()
        assert (await work).content == WHOLE
        await until(lambda: len(tagger.observed) == 1)
        learned = tagger.observed[0]
        assert learned.request_id == tagger.asked[0].request_id
        assert (learned.model_name, learned.prompt_tokens) == ("test-model", 7)
        assert (learned.output_tokens, learned.censored) == (20, True)  # cut off at max_tokens

        await scheduler.complete(vllm_xargs={"foretell_output_tokens": 9})
        await until(lambda: len(sidecar.reserved) == 2)
        assert engine.received[1].body["vllm_xargs"] == {
            "foretell_id": sidecar.reserved[1].request_id,
            "foretell_predicted_tokens": 9.0,
        }
        assert len(tagger.asked) == 1


@asynccontextmanager
async def waiting(
    folder: Path, tagger: Tagger, sidecar: Predictor, *, wait_ms: int
) -> AsyncIterator[Scheduler]:
    """A scheduler whose placements wait for the tagger."""
    async with (
        engines(answer) as (engine,),
        serving(tagger) as address,
        serving(sidecar) as predictor,
        running(
            folder,
            [engine],
            [predictor],
            tagger=address,
            tagger_wait_ms=wait_ms,
            policy="predicted_latency",
        ) as scheduler,
    ):
        yield scheduler


async def test_a_placement_waits_for_the_tagger_where_that_is_set(tmp_path: Path) -> None:
    tagger, sidecar = Tagger(expected_tokens=1.0), Predictor()
    async with waiting(tmp_path, tagger, sidecar, wait_ms=1000) as scheduler:
        await scheduler.complete(max_tokens=20)
        await until(lambda: len(sidecar.reserved) == 1)
        assert sidecar.reserved[0].length.source == "model"
        assert sidecar.reserved[0].length.expected_tokens == 1.0
        assert len(tagger.asked) == 1
        await until(lambda: len(tagger.observed) == 1)
        assert await scheduler.metric("foretell_lengths_revised_total") == 0


async def test_a_tagger_that_hangs_keeps_nobody_beyond_its_bound(tmp_path: Path) -> None:
    tagger, sidecar = Tagger(expected_tokens=1.0), Predictor()
    tagger.hanging = True
    async with waiting(tmp_path, tagger, sidecar, wait_ms=5) as scheduler:
        for _ in range(30):
            assert (await scheduler.complete()).content == WHOLE
        assert len(tagger.asked) == 1
        work = asyncio.create_task(scheduler.complete())
        await asyncio.sleep(0)
        work.cancel()
        await scheduler.until_idle()
    assert {each.length.source for each in sidecar.reserved} == {"small_model"}


async def test_the_tagger_is_told_bounds_and_kind_and_not_asked_what_is_certain(
    tmp_path: Path,
) -> None:
    tagger = Tagger(expected_tokens=12.0)
    async with (
        engines(answer) as (engine,),
        serving(tagger) as address,
        running(tmp_path, [engine], tagger=address) as scheduler,
    ):
        await scheduler.complete(max_tokens=64, ignore_eos=True)
        await scheduler.complete(max_tokens=64, min_tokens=8, guided_regex="a+")
        await until(lambda: len(tagger.asked) == 1)
        assert (tagger.asked[0].min_tokens, tagger.asked[0].max_tokens) == (8, 64)
        tokens = [each.body["vllm_xargs"]["foretell_predicted_tokens"] for each in engine.received]
        assert tokens[0] == 64.0
        assert 8 <= tokens[1] <= 64
        await until(lambda: len(tagger.observed) == 1)  # nothing is learnt from the first
        structured = tagger_pb2.REQUEST_KIND_STRUCTURED
        assert tagger.asked[0].kind == tagger.observed[0].kind == structured


@pytest.mark.parametrize("model", ["shipped", "none"])
async def test_estimates_keep_to_bounds(tmp_path: Path, model: str) -> None:
    async with engines(answer) as (engine,), running(tmp_path, [engine], length_model=model) as own:
        await own.complete(max_tokens=64, min_tokens=60)
        assert 60 <= engine.received[0].body["vllm_xargs"]["foretell_predicted_tokens"] <= 64


def test_a_folder_without_a_length_model_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="length model"):
        open_model(str(tmp_path))


SILENT_TAGGERS = {
    "dead": _Dead,
    "mute": foreign,
    "babbling": lambda: foreign(b"220 mail.example.org ESMTP\r\n"),
    "hanging": lambda: serving(_hanging_tagger()),
    "undecodable": lambda: serving(None),
    "nan": lambda: serving(Tagger(math.nan)),
    "infinite": lambda: serving(Tagger(math.inf)),
    "negative": lambda: serving(Tagger(-5.0)),
    "bad_level": lambda: serving(_bad_level_tagger()),
}


def _hanging_tagger() -> Tagger:
    tagger = Tagger()
    tagger.hanging = True
    return tagger


def _bad_level_tagger() -> Tagger:
    tagger = Tagger()
    tagger.estimate.quantiles.append(tagger_pb2.Quantile(level=2.0, tokens=5))
    return tagger


@pytest.mark.parametrize("kind", SILENT_TAGGERS)
async def test_no_tagger_holds_a_request_up_or_is_believed_what_makes_no_sense(
    tmp_path: Path, kind: str
) -> None:
    async with (
        engines(answer) as (engine,),
        SILENT_TAGGERS[kind]() as address,
        running(tmp_path, [engine], tagger=address) as scheduler,
    ):
        for _ in range(5):
            assert (await scheduler.complete(max_tokens=64)).content == WHOLE
        for received in engine.received:
            tokens = received.body["vllm_xargs"]["foretell_predicted_tokens"]
            assert 0 < tokens <= 64
        assert await scheduler.metric("foretell_degraded_total") == 0
        assert await scheduler.metric("foretell_lengths_revised_total") == 0


async def test_the_last_known_load_stands_in_for_a_predictor_that_dies(tmp_path: Path) -> None:
    busy, idle = Predictor(), Predictor()
    busy.predicted.load = LOAD._replace(used_blocks=90)
    async with (
        engines(answer, answer) as both,
        serving(busy) as first,
        serving(idle) as second,
        running(tmp_path, both, [first, second], policy="infaas") as scheduler,
    ):
        for _ in range(3):
            assert (await scheduler.complete()).headers["x-foretell-instance"] == "engine-1"
        busy.silent = idle.silent = True
        for _ in range(3):
            assert (await scheduler.complete()).headers["x-foretell-instance"] == "engine-1"
        assert await scheduler.metric("foretell_degraded_total", missing="predictor") == 6
