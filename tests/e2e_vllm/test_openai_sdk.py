"""The official SDK through the scheduler to two real vLLM engines on the CPU.

`make test-vllm` runs it and sets vLLM's Python and the tiny model in the environment.
"""

import asyncio
import json
from dataclasses import dataclass
from itertools import cycle
from random import Random
from statistics import median, quantiles
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI
from rich.console import Console
from rich.table import Table

from tests.e2e.cluster import Cluster
from tests.e2e_vllm.vllm_engines import ENGINES, model_of, recorded

CONCURRENT = 200
pytestmark = [pytest.mark.timeout(600), pytest.mark.vllm]


@dataclass
class Call:
    """One request and its answer."""

    chat: bool
    stream: bool
    prompt: str
    max_tokens: int
    request_id: str
    text: str = ""
    instance: str = ""
    predicted_e2e_s: float = 0.0
    completion_tokens: int = 0


def calls(count: int, seed: int) -> list[Call]:
    rng = Random(seed)
    words = [
        "the",
        "engine",
        "will",
        "answer",
        "when",
        "it",
        "has",
        "time",
        "and",
        "memory",
        "for",
        "one",
        "more",
        "request",
    ]
    kinds = cycle([(False, False), (False, True), (True, False), (True, True)])
    return [
        Call(
            chat,
            stream,
            f"{i}: " + " ".join(rng.choices(words, k=rng.randint(3, 80))),
            rng.randint(4, 48),
            f"sdk-{seed}-{i}",
        )
        for i, (chat, stream) in zip(range(count), kinds, strict=False)
    ]


async def send(client: AsyncOpenAI, model: str, call: Call) -> None:
    """Send `call` and record the answer's text, instance and prediction in it."""
    options: dict[str, Any] = {
        "model": model,
        "max_tokens": call.max_tokens,
        "temperature": 0,
        "stream": call.stream,
        "extra_headers": {"x-request-id": call.request_id},
    }
    if call.chat:
        raw = await client.chat.completions.with_raw_response.create(
            messages=[{"role": "user", "content": call.prompt}], **options
        )
    else:
        raw = await client.completions.with_raw_response.create(prompt=call.prompt, **options)
    call.instance = raw.headers.get("x-foretell-instance", "")
    call.predicted_e2e_s = float(raw.headers.get("x-foretell-predicted-e2e-s", 0))
    answer = raw.parse()
    if call.stream:
        async for chunk in answer:
            choice = chunk.choices[0]
            call.text += (choice.delta.content if call.chat else choice.text) or ""
        return
    choice = answer.choices[0]
    call.text = (choice.message.content if call.chat else choice.text) or ""
    call.completion_tokens = answer.usage.completion_tokens


async def send_all(base_url: str, model: str, todo: list[Call]) -> None:
    limits = httpx.Limits(max_connections=CONCURRENT)
    async with (
        httpx.AsyncClient(limits=limits, timeout=300) as http,
        AsyncOpenAI(
            base_url=f"{base_url}/v1", api_key="none", max_retries=0, http_client=http
        ) as client,
    ):
        await asyncio.gather(*(send(client, model, call) for call in todo))


def direct(running: Cluster, asked: list[Call]) -> list[Call]:
    """The same calls, each sent directly to the engine that answered it before."""
    again = [
        Call(c.chat, c.stream, c.prompt, c.max_tokens, f"direct-{c.request_id}") for c in asked
    ]
    model = model_of(running)

    async def ask() -> None:
        for name in sorted({call.instance for call in asked}):
            url = running.component(name)["address"]
            mine = [a for a, c in zip(again, asked, strict=True) if c.instance == name]
            await send_all(url, model, mine)

    asyncio.run(ask())
    return again


async def show_speeds(running: Cluster) -> None:
    """Have all engines answer some requests at once. Otherwise an engine last measured while the
    host was busy with other work would count as slow and rightly get fewer requests."""
    model = model_of(running)
    urls = [running.component(f"engine-{i}")["address"] for i in range(ENGINES)]
    await asyncio.gather(*(send_all(url, model, calls(24, seed=3)) for url in urls))


def print_errors(title: str, lines: list[dict[str, Any]]) -> None:
    """The distribution of (predicted - actual) / actual: TTFT of streams, e2e of all `lines`.

    Without a stream the first token's arrival cannot be seen; the log then has an estimate.
    """
    table = Table(title=title)
    for column in ("", "requests", "P10", "P50", "P90", "median |error|"):
        table.add_column(column, justify="right")
    streams = [line for line in lines if line["stream"]]
    for name, chosen in (("ttft", streams), ("e2e", lines)):
        errors = [line[f"predicted_{name}_s"] / line[f"{name}_s"] - 1 for line in chosen]
        tenths = quantiles(errors, n=10)
        typical = median(map(abs, errors))
        cells = [f"{value:+.1%}" for value in (tenths[0], tenths[4], tenths[8])]
        table.add_row(name, str(len(errors)), *cells, f"{typical:.1%}")
    Console().print(table)


def check(running: Cluster, asked: list[Call], title: str, burst: bool) -> list[dict[str, Any]]:
    """Check that every answer equals a direct one, and that the log has predictions and truth.

    All must have been predicted, unless they came in a `burst`.
    """
    assert {call.instance for call in asked} <= {f"engine-{i}" for i in range(ENGINES)}
    for call, same in zip(asked, direct(running, asked), strict=True):
        assert call.text.encode() == same.text.encode(), (call, same)
    lines = recorded(running, [call.request_id for call in asked])
    for line in lines:
        assert not line["emulated"]
        assert line["finished"]
        # Without a stream, the first token of a short answer may be in no snapshot.
        measured = ("e2e_s", "ttft_s") if line["stream"] else ("e2e_s",)
        predicted = ("predicted_ttft_s", "predicted_e2e_s")
        # In a burst a slow machine may have no time to predict: then both are missing, not one.
        told = [line[name] for name in predicted if line[name] is not None]
        assert len(told) == 2 or (burst and not told), json.dumps(line)
        assert all((line[name] or 0) > 0 for name in measured), json.dumps(line)
        assert all(seconds > 0 for seconds in told), json.dumps(line)
    unseen = sum(not line["ttft_s"] for line in lines)
    assert unseen <= len(lines) / 10, f"{unseen} of {len(lines)} requests without a TTFT"
    print_errors(title, [line for line in lines if line["predicted_e2e_s"] is not None])
    return lines


def test_each_kind_of_request_one_after_the_other(running: Cluster) -> None:
    asked = calls(24, seed=1)
    for call in asked:
        asyncio.run(send_all(running.endpoint, model_of(running), [call]))
    check(running, asked, "24 requests, one at a time", burst=False)


def test_two_hundred_at_once(running: Cluster) -> None:
    asyncio.run(show_speeds(running))
    asked = calls(CONCURRENT, seed=2)
    asyncio.run(send_all(running.endpoint, model_of(running), asked))
    assert {call.instance for call in asked} == {f"engine-{i}" for i in range(ENGINES)}
    for call in asked:
        if not call.stream:
            assert call.completion_tokens == call.max_tokens
    check(running, asked, f"{CONCURRENT} concurrent requests", burst=True)


def test_what_is_wrong_with_a_request_only_the_engine_can_know(running: Cluster) -> None:
    """vLLM's own refusals pass unchanged."""
    body = {
        "model": model_of(running),
        "messages": [{"role": "user", "content": "word " * 3000}],
    }
    answer = httpx.post(f"{running.endpoint}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 400
    assert "context length" in answer.json()["error"]["message"]
