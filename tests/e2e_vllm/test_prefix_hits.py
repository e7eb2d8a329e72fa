"""A prompt that begins like an earlier one goes to the engine that has it cached, and the request
log says so: two real vLLM engines on the CPU. Run by `make test-vllm`.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from tests.e2e.cluster import Cluster, cluster, until
from tests.e2e_vllm.test_openai_sdk import ENGINE_ARGS, ENGINES, PATIENCE, model_of

TEXTS, TURNS = 4, 4
WORDS = ["the", "model", "server", "request", "every", "engine", "answers", "waits", "for", "it"]
pytestmark = [pytest.mark.timeout(600), pytest.mark.vllm]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    python, model = os.environ["FORETELL_VLLM_PYTHON"], os.environ["FORETELL_TINY_MODEL"]
    run_dir: Path = tmp_path_factory.mktemp("up")
    flags = (
        f"--engines={ENGINES}",
        "--engine=vllm",
        "--schedulers=1",
        f"--python={python}",
        f"--model={model}",
        f"--engine-args={ENGINE_ARGS} --max-model-len 2048 --block-size 32",
        "--no-restart",
    )
    with cluster(run_dir, *flags, start_s=240.0, **PATIENCE) as found:
        yield found


def text_of(draws: Random, words: int) -> str:
    return " ".join(draws.choices(WORDS, k=words))


def calibrate(running: Cluster) -> None:
    """Let both predictors learn prefills and decodes, whichever engine requests then go to."""
    draws, model = Random(1), model_of(running)
    for index in range(ENGINES):
        url = running.component(f"engine-{index}")["address"]
        for words in (20, 800, 100, 600, 300, 900):
            body = {"model": model, "prompt": text_of(draws, words), "max_tokens": 24}
            httpx.post(
                f"{url}/v1/completions", json={**body, "ignore_eos": True}, timeout=120
            ).raise_for_status()


def ask(running: Cluster, name: str, messages: list[dict[str, str]]) -> tuple[str, str]:
    """The answer, and who gave it."""
    answer = httpx.post(
        f"{running.endpoint}/v1/chat/completions",
        json={"model": model_of(running), "messages": messages, "max_tokens": 4},
        headers={"x-request-id": name},
        timeout=120,
    ).raise_for_status()
    content = answer.json()["choices"][0]["message"]["content"]
    return content, answer.headers["x-foretell-instance"]


def line_of(running: Cluster, name: str) -> dict[str, Any]:
    """The request's line in the log, which is written after the answer."""
    found: list[dict[str, Any]] = []

    def logged() -> bool:
        for path in running.run_dir.glob("*.requests.jsonl"):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            found.extend(line for line in lines if line["request_id"] == name)
        return bool(found)

    until(logged, 20.0)
    return found[0]


def test_later_turns_go_where_the_earlier_ones_are_cached(running: Cluster) -> None:
    calibrate(running)
    draws = Random(2)
    chats = [[{"role": "user", "content": text_of(draws, 700)}] for _ in range(TEXTS)]
    went: list[list[str]] = [[] for _ in chats]
    for turn in range(TURNS):
        for number, (chat, instances) in enumerate(zip(chats, went, strict=True)):
            name = f"prefix-{number}-{turn}"
            content, instance = ask(running, name, chat)
            line = line_of(running, name)
            if instance in instances:
                assert line["cached_tokens"] >= 0.7 * line["prompt_tokens"]
                error = line["predicted_cached_tokens"] - line["cached_tokens"]
                assert abs(error) <= 0.25 * line["prompt_tokens"], line
            else:
                assert line["cached_tokens"] <= 64, line  # the chat template's own beginning
            instances.append(instance)
            chat.append({"role": "assistant", "content": content})
            chat.append({"role": "user", "content": text_of(draws, 20)})
    moved = sum(len(set(instances)) > 1 for instances in went)
    assert moved <= 1, went
