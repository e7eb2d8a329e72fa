"""A greedy batch from OpenAI's client on real engines; every answer equals a direct one."""

import asyncio
import json
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.e2e.cluster import Cluster
from tests.e2e_vllm.test_openai_sdk import Call, calls, send_all
from tests.e2e_vllm.vllm_engines import model_of

LINES = 200
WAIT_S = 300.0
URL = "/v1/completions"
pytestmark = [pytest.mark.timeout(600), pytest.mark.vllm]


async def batch_of(url: str, lines: list[dict[str, Any]]) -> tuple[Any, list[dict[str, Any]]]:
    """The ended batch, and the lines of its output."""
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as sdk:
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        file = await sdk.files.create(file=("input.jsonl", data), purpose="batch")
        batch = await sdk.batches.create(
            input_file_id=file.id, endpoint=URL, completion_window="24h"
        )
        async with asyncio.timeout(WAIT_S):
            while batch.status in ("validating", "in_progress", "finalizing"):
                await asyncio.sleep(0.2)
                batch = await sdk.batches.retrieve(batch.id)
        assert batch.status == "completed", batch
        content = await sdk.files.content(batch.output_file_id)
        return batch, [json.loads(line) for line in content.text.splitlines()]


def completions(count: int, seed: int) -> list[Call]:
    """Calls that can be lines of a batch."""
    found = [call for call in calls(2 * count, seed) if not call.chat]
    for call in found:
        call.stream = False
    return found


def lines_of(model: str, asked: list[Call]) -> list[dict[str, Any]]:
    return [
        {
            "custom_id": call.request_id,
            "method": "POST",
            "url": URL,
            "body": {
                "model": model,
                "prompt": call.prompt,
                "max_tokens": call.max_tokens,
                "temperature": 0,
            },
        }
        for call in asked
    ]


def check_batch(
    running: Cluster, batch: Any, found: list[dict[str, Any]], asked: list[Call]
) -> None:
    """Check that each line is in the output once, with the text that an engine gives directly."""
    assert batch.request_counts.completed == batch.request_counts.total == len(asked)
    assert [each["custom_id"] for each in found] == [call.request_id for call in asked]
    url = running.component("engine-0")["address"]
    asyncio.run(send_all(url, model_of(running), asked))
    for each, call in zip(found, asked, strict=True):
        (choice,) = each["response"]["body"]["choices"]
        assert choice["text"] == call.text
    assert batch.usage.output_tokens == sum(call.completion_tokens for call in asked)


def test_a_greedy_batch_is_what_an_engine_says_when_asked(running: Cluster) -> None:
    asked = completions(LINES, seed=3)
    batch, found = asyncio.run(batch_of(running.endpoint, lines_of(model_of(running), asked)))
    check_batch(running, batch, found, asked)
