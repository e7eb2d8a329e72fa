"""A real engine gives the same answers with offline requests beside online ones as without."""

import asyncio
from random import Random
from typing import Any

import httpx
import pytest

from tests.e2e.cluster import Cluster
from tests.e2e_vllm.vllm_engines import ENGINES, model_of

pytestmark = [pytest.mark.timeout(600), pytest.mark.vllm]

TEXT = "the model server places every request where it will be served best and soon"
WORDS = TEXT.split()
ONLINE, OFFLINE = 24, 120
OFFLINE_FIELDS = {"vllm_xargs": {"class": "offline"}}
ONLINE_FIELDS: dict[str, Any] = {"vllm_xargs": {"slo_ttft_ms": 2000.0, "slo_tpot_ms": 200.0}}


def prompts() -> list[str]:
    """Prompts of which some share prefixes; together they exceed the KV cache."""
    draws = Random(5)
    books = [" ".join(draws.choices(WORDS, k=150)) for _ in range(6)]
    return [
        f"{draws.choice(books)} {' '.join(draws.choices(WORDS, k=draws.randint(1, 60)))}"
        for _ in range(ONLINE + OFFLINE)
    ]


async def ask(client: httpx.AsyncClient, model: str, prompt: str, **more: Any) -> str:
    body = {"model": model, "prompt": prompt, "temperature": 0, "ignore_eos": True, **more}
    answer = await client.post("/v1/completions", json=body)
    return str(answer.raise_for_status().json()["choices"][0]["text"])


async def both(url: str, stock_url: str, model: str) -> tuple[list[str], list[str]]:
    """The answers of the engine that serves both classes at once, and those of the other engine."""
    asked = [(prompt, 8 + index % 40) for index, prompt in enumerate(prompts())]
    async with (
        httpx.AsyncClient(base_url=url, timeout=300.0) as client,
        httpx.AsyncClient(base_url=stock_url, timeout=300.0) as stock,
    ):
        offline = [
            asyncio.create_task(ask(client, model, text, max_tokens=count, **OFFLINE_FIELDS))
            for text, count in asked[ONLINE:]
        ]
        online = []
        for index, (text, count) in enumerate(asked[:ONLINE]):
            fields = ONLINE_FIELDS if index % 2 else {}
            # First one after the other, then all at once as a burst.
            task = asyncio.create_task(ask(client, model, text, max_tokens=count, **fields))
            online.append(task)
            if index < ONLINE // 2:
                await task
        found = [*await asyncio.gather(*online), *await asyncio.gather(*offline)]
        wanted = await asyncio.gather(
            *(ask(stock, model, text, max_tokens=count) for text, count in asked)
        )
    return found, wanted


def test_each_answer_is_what_stock_vllm_says(running: Cluster) -> None:
    last = f"engine-{ENGINES - 1}"
    url, stock = (running.component(name)["address"] for name in (last, "engine-0"))
    found, wanted = asyncio.run(both(url, stock, model_of(running)))
    assert found == wanted
    log = (running.run_dir / f"{last}.engine.log").read_text(errors="replace")
    assert "no longer planned" not in log
    assert "are served as online ones" not in log
