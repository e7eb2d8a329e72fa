"""A request in an engine's queue is recalled, unnoticed, to one that can serve it sooner.

Emulated engines with one seat, real sidecars, a real scheduler.
"""

import asyncio
import json
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import httpx
import pytest
from emulated_engine import MODEL, engine_with_sidecar
from schedulers import Scheduler, running

from foretell.services.process.folders import free_ports

pytestmark = pytest.mark.timeout(600)
LONG, SHORT = 3000, 4
"""Output tokens: about a minute on an emulated engine, and next to no time."""


def body(text: str, tokens: int, **more: object) -> dict[str, object]:
    messages = [{"role": "user", "content": text}]
    limits = {"max_tokens": tokens, "min_tokens": tokens, "ignore_eos": True}
    return {"model": MODEL, "messages": messages, **limits, **more}


async def ask(scheduler: Scheduler, tokens: int, *, stream: bool = False) -> httpx.Response:
    said = body("hello", tokens, stream=stream)
    answer = await scheduler.client.post("/v1/chat/completions", json=said)
    answer.raise_for_status()
    return answer


@pytest.mark.parametrize("stream", [False, True])
async def test_a_new_engine_takes_over_what_waits(tmp_path: Path, stream: bool) -> None:
    first, second = free_ports("127.0.0.1", 2)
    instances = [
        {
            "instance_id": f"engine-{number}",
            "url": f"http://127.0.0.1:{port}",
            "predictor": f"unix://{tmp_path}/predictor-{number}",
        }
        for number, port in enumerate((first, second))
    ]
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(engine_with_sidecar(tmp_path, 0, first))
        scheduler = await stack.enter_async_context(
            running(tmp_path, instances=json.dumps(instances), policy="slo")
        )
        await scheduler.until(lambda s: s["instances"][0]["healthy"])
        while "x-foretell-predicted-ttft-s" not in (await ask(scheduler, SHORT)).headers:
            pass  # the scheduler has not heard of the engine yet
        long = asyncio.create_task(ask(scheduler, LONG))
        await scheduler.until(lambda s: s["instances"][0]["outstanding"] == 1)
        waiting = asyncio.create_task(ask(scheduler, SHORT, stream=stream))
        await scheduler.until(lambda s: s["instances"][0]["outstanding"] == 2)
        await stack.enter_async_context(engine_with_sidecar(tmp_path, 1, second))

        answer = await waiting
        assert answer.headers["x-foretell-instance"] == "engine-1"
        assert not long.done(), "it was served in its turn"
        assert await scheduler.metric("foretell_recalls_total", instance_id="engine-0") == 1
        if stream:
            assert answer.text.count("data: ") >= SHORT
            assert answer.text.endswith("data: [DONE]\n\n")
        else:
            assert answer.json()["usage"]["completion_tokens"] == SHORT
        long.cancel()
        with suppress(asyncio.CancelledError):
            await long
        await scheduler.until(lambda s: all(not i["outstanding"] for i in s["instances"]))


async def test_a_client_that_leaves_what_waits_is_forgotten(tmp_path: Path) -> None:
    (port,) = free_ports("127.0.0.1", 1)
    async with (
        engine_with_sidecar(tmp_path, 0, port) as engine,
        running(
            tmp_path,
            instances=json.dumps(
                [
                    {
                        "instance_id": "engine-0",
                        "url": engine.url,
                        "predictor": f"unix://{tmp_path}/predictor-0",
                    }
                ]
            ),
            policy="slo",
        ) as scheduler,
    ):
        await scheduler.until(lambda s: s["instances"][0]["healthy"])
        asked = [asyncio.create_task(ask(scheduler, LONG)) for _ in range(2)]
        await scheduler.until(lambda s: s["instances"][0]["outstanding"] == 2)
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        await scheduler.until(lambda s: not s["instances"][0]["outstanding"])
