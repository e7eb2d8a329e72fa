"""A real engine is killed during a batch: no line or online request is lost or answered twice."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from tests.e2e.cluster import Cluster
from tests.e2e_vllm.test_openai_batches import batch_of, check_batch, completions, lines_of
from tests.e2e_vllm.test_openai_sdk import Call, calls, send, send_all
from tests.e2e_vllm.vllm_engines import ENGINES, model_of, vllm_cluster

LINES, CLIENTS = 200, 4
MOST_ONLINE = 1200
LONG_TOKENS = 96
VICTIM = f"engine-{ENGINES - 1}"
"""It serves offline requests beside online ones, so it gets most lines."""
WAIT_S = 200.0
pytestmark = [pytest.mark.timeout(600), pytest.mark.vllm]


async def keep_asking(
    sdk: AsyncOpenAI, model: str, todo: list[Call], done: list[Call], over: asyncio.Event
) -> None:
    """Send one call after the other, each once."""
    while todo and not over.is_set():
        call = todo.pop()
        await send(sdk, model, call)
        done.append(call)


async def kill_amidst_work(running: Cluster) -> float:
    """Kill the victim while it works and a tenth of the lines has ended; return the Unix time."""
    async with httpx.AsyncClient(base_url=running.endpoint, timeout=300.0) as client:
        async with asyncio.timeout(WAIT_S):
            while True:
                batches = (await client.get("/v1/batches")).json()["data"]
                ended = batches[0]["request_counts"]["completed"] if batches else 0
                status = (await client.get("/status")).json()
                work = {each["instance_id"]: each["running"] for each in status["instances"]}
                if ended >= LINES // 10 and (work[VICTIM] or 0) > CLIENTS:
                    break
                await asyncio.sleep(0.02)
        assert ended < LINES - ENGINES, "the batch had ended before"
        running.kill(VICTIM)
        return time.time()


async def beside(
    running: Cluster, model: str, lines: list[dict[str, Any]], todo: list[Call]
) -> tuple[Any, list[dict[str, Any]], list[Call], float]:
    """The batch, its output, the answered online requests, and the Unix time of the kill."""
    over, done = asyncio.Event(), list[Call]()
    async with (
        AsyncOpenAI(
            base_url=f"{running.endpoint}/v1", api_key="none", max_retries=0, timeout=300.0
        ) as sdk,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(CLIENTS):
            group.create_task(keep_asking(sdk, model, todo, done, over))
        killing = group.create_task(kill_amidst_work(running))
        batch, found = await batch_of(running.endpoint, lines)
        over.set()
    return batch, found, done, killing.result()


def cut_off(running: Cluster, killed_unix_s: float) -> set[str]:
    """Ids of requests with an attempt in progress on the engine when it died."""
    lines = [
        json.loads(line)
        for path in running.run_dir.glob("*.requests.jsonl")
        for line in path.read_text().splitlines()
    ]
    return {
        line["request_id"]
        for line in lines
        if line["instance_id"] == VICTIM
        and not line["finished"]
        and line["placed_unix_s"] < killed_unix_s <= line["time_unix_s"]
    }


def test_a_killed_engine_costs_no_line_and_no_online_request(tmp_path: Path) -> None:
    with vllm_cluster(tmp_path) as running:
        model = model_of(running)
        asked = completions(LINES, seed=11)
        for call in asked:
            call.max_tokens += LONG_TOKENS
        todo = calls(MOST_ONLINE, seed=12)
        lines = lines_of(model, asked)
        batch, found, online, killed_unix_s = asyncio.run(beside(running, model, lines, todo))
        assert todo, "there were online requests until the end"
        lost = cut_off(running, killed_unix_s)
        assert any(name.startswith("batch_req_") for name in lost), "nothing was cut off"
        check_batch(running, batch, found, asked)
        told = [(call.text, call.completion_tokens) for call in online]
        for call in online:
            call.text = ""
        asyncio.run(send_all(running.component("engine-0")["address"], model, online))
        assert told == [(call.text, call.completion_tokens) for call in online]
