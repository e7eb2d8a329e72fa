"""Engines other than vLLM get requests unchanged; the ranks of one server are instances."""

import json
from pathlib import Path

import pytest
from engines import EVENTS, MODEL, WHOLE, Exchange, answer, break_after, engines
from schedulers import running


async def strict(exchange: Exchange) -> None:
    """Answer as TensorRT-LLM's server, which refuses fields that it does not know."""
    known = {"model", "prompt", "stream", "max_tokens", "messages"}
    if unknown := exchange.received.body.keys() - known:
        await exchange.whole(400, json.dumps({"error": f"extra: {sorted(unknown)}"}).encode())
    else:
        await answer(exchange)


@pytest.mark.parametrize(
    ("owner", "kind"),
    [("sglang", "sglang"), ("tensorrt_llm", "tensorrt-llm"), ("somebody", "openai")],
)
async def test_nothing_is_added_for_engines_that_may_refuse_it(
    owner: str, kind: str, tmp_path: Path
) -> None:
    async with engines(strict) as (engine,):
        engine.models = {"data": [{"id": MODEL, "owned_by": owner}]}
        async with running(tmp_path, [engine]) as scheduler:
            for stream in (False, True):
                response = await scheduler.complete(stream=stream)
                assert response.status_code == 200
                assert response.headers["x-foretell-instance"] == engine.instance_id
            await scheduler.until_metric("foretell_instance_healthy", 1, engine=kind)
            (status,) = (await scheduler.status())["instances"]
            assert status["unpredicted"] == "it has no predictor: placed by what is outstanding"
            text = await scheduler.metrics()
            assert "foretell_engine_unpredicted{" in text


async def test_what_another_kind_of_engine_began_no_vllm_goes_on_with(tmp_path: Path) -> None:
    async with engines(break_after(*EVENTS[:2]), answer) as (other, vllm):
        other.models = {"data": [{"id": MODEL, "owned_by": "sglang"}]}
        async with running(tmp_path, [other, vllm]) as scheduler:
            for _ in range(4):
                response = await scheduler.complete(stream=True)
                if response.headers["x-foretell-instance"] == other.instance_id:
                    break
            assert b"engine_lost" in response.content
            assert all("vllm_xargs" not in each.body for each in other.received)


async def test_an_engine_that_changes_its_kind_is_asked_again(tmp_path: Path) -> None:
    async with engines(answer) as (engine,), running(tmp_path, [engine]) as scheduler:
        await scheduler.complete()
        assert "vllm_xargs" in engine.received[-1].body
        await engine.stop()
        await scheduler.until(lambda s: not s["instances"][0]["healthy"])
        engine.behaviour, engine.models = strict, {"data": [{"id": MODEL, "owned_by": "sglang"}]}
        await engine.start()
        await scheduler.until(lambda s: s["instances"][0]["healthy"])
        assert (await scheduler.complete()).content == WHOLE


async def test_a_rank_is_named_to_its_server_and_by_nobody_else(tmp_path: Path) -> None:
    async with engines(answer) as (engine,):
        engine.behaviour = answer

        class Rank:
            """A data-parallel rank of that server."""

            def __init__(self, rank: int) -> None:
                self.instance_id, self.rank = f"engine-0.rank{rank}", rank

            def config(self, predictor: str = "") -> dict[str, object]:
                of_server = engine.config(predictor)
                return {**of_server, "instance_id": self.instance_id, "rank": self.rank}

        async with running(tmp_path, [Rank(0), Rank(1)]) as scheduler:
            for _ in range(6):
                response = await scheduler.complete(headers={"X-data-parallel-rank": "7"})
                named = engine.received[-1].headers["x-data-parallel-rank"]
                assert response.headers["x-foretell-instance"] == f"engine-0.rank{named}"
    assert {each.headers["x-data-parallel-rank"] for each in engine.received} == {"0", "1"}


async def test_a_request_refused_for_our_fields_is_repeated_without_them(tmp_path: Path) -> None:
    async with engines(strict) as (engine,), running(tmp_path, [engine]) as scheduler:
        for stream in (False, True):
            response = await scheduler.complete(stream=stream)
            assert response.status_code == 200
        added = ["vllm_xargs" in each.body for each in engine.received]
        assert added == [True, False, False]


async def test_an_engine_that_takes_the_fields_gets_them_after_a_clients_own_mistake(
    tmp_path: Path,
) -> None:
    async def mistaken(exchange: Exchange) -> None:
        await exchange.whole(400, b'{"error": {"message": "unknown stop"}}')

    async with engines(mistaken) as (engine,), running(tmp_path, [engine]) as scheduler:
        assert (await scheduler.complete()).status_code == 400
        engine.behaviour = answer
        assert (await scheduler.complete()).status_code == 200
        assert ["vllm_xargs" in each.body for each in engine.received] == [True, False, True]


async def test_an_engine_of_a_stated_kind_gets_nothing_added(tmp_path: Path) -> None:
    async with engines(strict) as (engine,):

        class Stated:
            instance_id = engine.instance_id

            def config(self, predictor: str = "") -> dict[str, object]:
                return {**engine.config(predictor), "kind": "tensorrt-llm"}

        async with running(tmp_path, [Stated()]) as scheduler:
            assert (await scheduler.complete()).status_code == 200
            assert all("vllm_xargs" not in each.body for each in engine.received)
            await scheduler.until_metric("foretell_instance_healthy", 1, engine="tensorrt-llm")


async def test_an_engine_that_changes_its_kind_between_two_probes_serves_all(
    tmp_path: Path,
) -> None:
    async with engines(answer) as (engine,), running(tmp_path, [engine]) as scheduler:
        await scheduler.complete()
        engine.behaviour = strict
        for _ in range(3):
            assert (await scheduler.complete(stream=True)).status_code == 200
        added = ["vllm_xargs" in each.body for each in engine.received]
        assert added == [True, True, False, False, False]
