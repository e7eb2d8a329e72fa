"""A prompt that begins like an earlier one goes to the engine that has it cached.

And the request log says what was foretold and what was found.
"""

import asyncio
from random import Random
from typing import Any

import httpx
import pytest

from tests.e2e.cluster import Cluster
from tests.e2e_vllm.vllm_engines import ENGINES, model_of, recorded

CHATS, TURNS = 6, 4
WORDS = ["the", "model", "server", "request", "every", "engine", "answers", "waits", "for", "it"]
BLOCK_TOKENS = 128  # of vLLM on a CPU
pytestmark = [pytest.mark.timeout(600), pytest.mark.vllm]

Chat = list[dict[str, str]]


def text_of(draws: Random, words: int) -> str:
    return " ".join(draws.choices(WORDS, k=words))


def calibrate(running: Cluster, model: str) -> None:
    """Let both predictors learn prefills and decodes, whichever engine requests then go to."""
    draws = Random(1)
    for index in range(ENGINES):
        url = running.component(f"engine-{index}")["address"]
        for words in (20, 500, 100, 400, 300, 600):
            body: dict[str, Any] = {"model": model, "prompt": text_of(draws, words)}
            body |= {"max_tokens": 24, "ignore_eos": True}
            httpx.post(f"{url}/v1/completions", json=body, timeout=120).raise_for_status()


async def ask(client: httpx.AsyncClient, model: str, name: str, chat: Chat) -> str:
    """Who answered; the answer is added to `chat`."""
    answer = await client.post(
        "/v1/chat/completions",
        json={"model": model, "messages": chat, "max_tokens": 4},
        headers={"x-request-id": name},
    )
    chat.append(answer.raise_for_status().json()["choices"][0]["message"])
    return answer.headers["x-foretell-instance"]


async def talk(running: Cluster, model: str, chats: list[Chat]) -> list[list[str]]:
    """Who answered each turn of each chat: the first turns all at once, then one after another."""
    draws = Random(2)
    async with httpx.AsyncClient(base_url=running.endpoint, timeout=120) as client:
        first = (ask(client, model, f"chat-{i}-0", chat) for i, chat in enumerate(chats))
        went = [[instance] for instance in await asyncio.gather(*first)]
        for turn in range(1, TURNS):
            for i, chat in enumerate(chats):
                chat.append({"role": "user", "content": text_of(draws, 20)})
                went[i].append(await ask(client, model, f"chat-{i}-{turn}", chat))
    return went


def test_later_turns_go_where_the_earlier_ones_are_cached(running: Cluster) -> None:
    model, draws = model_of(running), Random(3)
    calibrate(running, model)
    chats = [[{"role": "user", "content": text_of(draws, 450)}] for _ in range(CHATS)]
    went = asyncio.run(talk(running, model, chats))
    assert {instances[0] for instances in went} == {f"engine-{i}" for i in range(ENGINES)}
    # By chance five of six would move; whatever else the machine does may move one or two.
    assert sum(len(set(instances)) > 1 for instances in went) <= 2, went
    for i, instances in enumerate(went):
        lines = recorded(running, [f"chat-{i}-{turn}" for turn in range(TURNS)])
        for turn, line in enumerate(lines):
            if instances[turn] not in instances[:turn]:
                assert line["cached_tokens"] <= BLOCK_TOKENS, line
                continue
            assert line["cached_tokens"] >= line["prompt_tokens"] - 2 * BLOCK_TOKENS, line
            error = line["predicted_cached_tokens"] - line["cached_tokens"]
            assert abs(error) <= 2 * BLOCK_TOKENS, line
