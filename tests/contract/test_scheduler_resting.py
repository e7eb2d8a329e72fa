"""Sleeping or paused engines are no candidates; adapters can be loaded while engines run."""

from pathlib import Path

import pytest
from engines import MODEL, Engine, Exchange, answer, engines, status
from schedulers import running

ADAPTER = {"id": "adapter", "owned_by": "vllm", "parent": MODEL}


def _wakes(engine: Engine) -> None:
    async def behaviour(exchange: Exchange) -> None:
        if exchange.received.path == "/wake_up":
            engine.states["is_sleeping"] = False
            await exchange.whole(200, b'{"status": "awake"}')
        else:
            await answer(exchange)

    engine.behaviour = behaviour


@pytest.mark.parametrize("state", ["is_sleeping", "is_paused"])
async def test_who_rests_gets_nothing(state: str, tmp_path: Path) -> None:
    async with engines(answer, answer) as (first, second):
        first.states = {state: False}
        async with running(tmp_path, [first, second]) as scheduler:
            first.states = {state: True}
            await scheduler.until(lambda s: not s["instances"][0]["healthy"])
            for _ in range(3):
                response = await scheduler.complete()
                assert response.headers["x-foretell-instance"] == second.instance_id
            assert not first.received
            first.states = {state: False}
            await scheduler.until(lambda s: s["instances"][0]["healthy"])
            used = {(await scheduler.complete()).headers["x-foretell-instance"] for _ in range(2)}
            assert len(used) == 2


@pytest.mark.parametrize("wakes", [True, False])
async def test_a_request_that_finds_nobody_awake_wakes_one(wakes: bool, tmp_path: Path) -> None:
    async with engines(answer) as (engine,):
        _wakes(engine)
        engine.states = {"is_sleeping": True}
        wait_s = 30.0 if wakes else 0.0
        settings = {"all_up": False, "wake_engines": wakes, "engine_wait_s": wait_s}
        async with running(tmp_path, [engine], **settings) as scheduler:  # type: ignore[arg-type]
            await scheduler.until(lambda s: MODEL in s["instances"][0]["model_names"])
            assert not engine.received, "nobody has asked for it"
            response = await scheduler.complete()
            assert response.status_code == (200 if wakes else 503)
            assert [each.path for each in engine.received][:1] == ["/wake_up"] * wakes


async def test_who_cannot_be_waked_is_asked_again_for_the_next_request(tmp_path: Path) -> None:
    async with engines(status(500)) as (engine,):
        engine.states = {"is_sleeping": True}
        settings = {"all_up": False, "wake_engines": True, "engine_wait_s": 0.3}
        async with running(tmp_path, [engine], **settings) as scheduler:  # type: ignore[arg-type]
            assert (await scheduler.complete()).status_code == 503
            _wakes(engine)
            answers = [(await scheduler.complete()).status_code for _ in range(10)]
            assert 200 in answers


async def test_an_adapter_loaded_while_an_engine_runs_is_served_by_those_that_have_it(
    tmp_path: Path,
) -> None:
    async with (
        engines(answer, answer) as (first, second),
        running(tmp_path, [first, second]) as scheduler,
    ):
        missing = await scheduler.complete(model="adapter")
        assert missing.status_code == 404
        second.models = {"data": [{"id": MODEL, "owned_by": "vllm"}, ADAPTER]}
        await scheduler.until(lambda s: "adapter" in s["instances"][1]["model_names"])
        for _ in range(3):
            response = await scheduler.complete(model="adapter")
            assert response.headers["x-foretell-instance"] == second.instance_id
        second.models = {"data": [{"id": MODEL, "owned_by": "vllm"}]}
        await scheduler.until(lambda s: "adapter" not in s["instances"][1]["model_names"])
        assert (await scheduler.complete(model="adapter")).status_code == 404
