"""An engine is killed in the midst of its answers, and another one goes on with them.

It runs last: the engine stays dead. `docs/operate.md` says what these tests show.
"""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx
import pytest

from tests.e2e.cluster import Cluster, until
from tests.e2e_vllm.vllm_engines import ENGINES, model_of

pytestmark = [pytest.mark.timeout(600), pytest.mark.vllm]

TOKENS = 200
BEGUN = 12
"""Events after which a stream counts as in its midst."""
CHAT = {"messages": [{"role": "user", "content": "Tell me of the sea."}]}
SCHEMA = {
    "type": "object",
    "properties": {"names": {"type": "array", "items": {"type": "string"}, "minItems": 400}},
    "required": ["names"],
}
EXACT: dict[str, dict[str, Any]] = {
    "chat": CHAT,
    "completion": {"prompt": "the model server"},
    "token ids as prompt": {"prompt": [300, 301, 302]},
    "usage": CHAT | {"stream_options": {"include_usage": True}},
    "usage in each event": CHAT
    | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "stop": {"prompt": "every engine", "stop": ["a word that never comes", "zzz"]},
    "min_tokens": {"prompt": "a request", "min_tokens": 190, "ignore_eos": False},
    "repetition_penalty": {"prompt": "the model server", "repetition_penalty": 1.2},
    "logit_bias": {"prompt": "the model server", "logit_bias": {"58": -100, "512": 2}},
    "bad_words": {"prompt": "the model server", "bad_words": ["X"]},
    "structured_outputs": {
        "prompt": "the model server",
        "structured_outputs": {"regex": "[a-z ]{2000,}"},
    },
    "response_format": CHAT
    | {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
    "tools": CHAT
    | {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "tool_choice": "none",
    },
}
"""What goes on exactly: the same as from an undisturbed engine, which is greedy."""
DIFFERS: dict[str, dict[str, Any]] = {
    "temperature": CHAT | {"temperature": 1.0},
    "seed": CHAT | {"temperature": 1.0, "seed": 7},
    "presence_penalty": {"prompt": "the model server", "presence_penalty": 1.0},
    "frequency_penalty": {"prompt": "the model server", "frequency_penalty": 1.0},
}
"""What goes on from the same tokens, and may differ after them."""
ENDED: dict[str, dict[str, Any]] = {
    "n": CHAT | {"n": 2, "temperature": 1.0},
    "logprobs": CHAT | {"logprobs": True},
    "return_token_ids": CHAT | {"return_token_ids": True},
}
"""What nobody goes on with."""


@dataclass
class Answer:
    """What a client got of one stream."""

    instance: str = ""
    text: str = ""
    events: int = 0
    usage: dict[str, int] | None = None
    ends: list[str] = field(default_factory=list)
    heads: set[tuple[str, int]] = field(default_factory=set)
    error: str = ""

    def take(self, line: str) -> None:
        if line == "data: [DONE]":
            self.ends.append("done")
        elif line:
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                self.error = event["error"]["code"]
                return
            self.events += 1
            self.heads.add((event["id"], event["created"]))
            usage = event.get("usage")
            self.usage = usage or self.usage
            for choice in event["choices"]:
                delta = choice.get("delta", choice)
                self.text += delta.get("content") or delta.get("text") or ""
                self.ends += [choice["finish_reason"]] if choice["finish_reason"] else []


async def stream(client: httpx.AsyncClient, body: dict[str, Any], answer: Answer) -> Answer:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    async with client.stream("POST", path, json=body) as response:
        assert response.status_code == 200, await response.aread()
        answer.instance = response.headers["x-foretell-instance"]
        async for line in response.aiter_lines():
            answer.take(line)
    return answer


def bodies(model: str, cases: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    usual = {"model": model, "max_tokens": TOKENS, "stream": True}
    return {
        name: usual | {"temperature": 0, "ignore_eos": name != "response_format"} | case
        for name, case in cases.items()
    }


def amidst(answers: dict[str, Answer]) -> list[str]:
    """Those of which something has come, and not yet the end."""
    return [name for name, each in answers.items() if each.events >= BEGUN and not each.ends]


def fullest(answers: dict[str, Answer]) -> tuple[int, str]:
    """How many streams an engine is amidst, and which, where they are most."""
    names = Counter(answers[name].instance for name in amidst(answers))
    return max(((count, name) for name, count in names.items()), default=(0, ""))


async def disturbed(
    running: Cluster, asked: dict[str, dict[str, Any]]
) -> tuple[dict[str, Answer], str]:
    """The answers, during which the engine that gives most of them is killed, and its name."""
    answers = {name: Answer() for name in asked}
    async with httpx.AsyncClient(base_url=running.endpoint, timeout=300) as client:
        tasks = [asyncio.create_task(stream(client, asked[n], answers[n])) for n in asked]
        await asyncio.to_thread(until, lambda: fullest(answers)[0] >= len(asked) // 3, 200.0)
        _, victim = fullest(answers)
        running.kill(victim)
        await asyncio.gather(*tasks)
    return answers, victim


async def undisturbed(running: Cluster, asked: dict[str, dict[str, Any]]) -> dict[str, Answer]:
    async with httpx.AsyncClient(base_url=running.endpoint, timeout=300) as client:
        found = await asyncio.gather(*(stream(client, body, Answer()) for body in asked.values()))
    return dict(zip(asked, found, strict=True))


@pytest.mark.parametrize("name", EXACT)
def test_any_engine_goes_on_exactly(running: Cluster, name: str) -> None:
    """Both engines live: what is begun on one goes on on the other, after any token."""
    body = bodies(model_of(running), EXACT)[name] | {"return_token_ids": True}
    urls = [running.component(f"engine-{index}")["address"] for index in range(ENGINES)]
    whole, ids = told(urls[0], body)
    for begun in {1, Random(name).randrange(2, TOKENS - 2), TOKENS - 1}:
        asked = body | {"vllm_xargs": {"foretell_output_ids": ids[:begun]}}
        assert told(urls[1], asked) == (whole, ids), begun


def told(url: str, body: dict[str, Any]) -> tuple[tuple[object, ...], list[int]]:
    """What a client makes of an engine's stream, and the ids of its tokens."""
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    answer, ids = Answer(), []
    with httpx.stream("POST", url + path, json=body, timeout=120) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            answer.take(line)
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    ids += choice.get("token_ids") or []
    return (answer.text, answer.ends, answer.usage), ids


def test_another_engine_goes_on_with_what_a_killed_one_began(running: Cluster) -> None:
    model = model_of(running)
    asked = bodies(model, EXACT | DIFFERS | ENDED)
    truth = asyncio.run(undisturbed(running, bodies(model, EXACT)))  # also compiles grammars
    found, victim = asyncio.run(disturbed(running, asked))
    until(lambda: not healthy(running, victim), 60.0)
    for name, answer in found.items():
        assert len(answer.heads) == 1, name
        if name in ENDED:  # unless it had come to its end, or had not begun
            assert bool(answer.error) is not bool(answer.ends), name
            assert answer.error in ("", "engine_lost"), name
            continue
        assert not answer.error, name
        assert len(answer.ends) == 2, (name, answer.ends)
        if name in EXACT:
            same = truth[name]
            assert (answer.text, answer.ends) == (same.text, same.ends), name
            assert (answer.usage or {}) == (same.usage or {}), name
    metrics = httpx.get(f"{running.endpoint}/metrics").text
    assert f'foretell_continuations_total{{instance_id="{victim}"' in metrics


def healthy(running: Cluster, instance: str) -> bool:
    status = httpx.get(f"{running.endpoint}/status").json()
    return any(i["healthy"] for i in status["instances"] if i["instance_id"] == instance)
