"""Files and batches with OpenAI's client, through a scheduler to the batch service's worker."""

import asyncio
import json
from pathlib import Path

import openai
import pytest
from batch_service import COMPLETIONS, batches, batching, created, ended, lines, quick
from engines import MODEL, Exchange, answer, engines
from provisioners import provisioning
from schedulers import WAIT_S

from foretell.batch import promises

__all__ = ["quick"]


async def test_a_batch_from_its_file_to_its_output(tmp_path: Path) -> None:
    async with batching(tmp_path) as (engine, _, sdk):
        batch = await created(sdk, lines(5), metadata={"for": "us"})
        assert (batch.status, batch.metadata) == ("validating", {"for": "us"})
        assert batch.expires_at == batch.created_at + 86_400
        batch = await ended(sdk, batch.id)
        assert batch.status == "completed", batch
        counts = batch.request_counts
        assert (counts.total, counts.completed, counts.failed) == (5, 5, 0)
        assert batch.model_extra.get("model", getattr(batch, "model", None)) == MODEL
        assert batch.usage.total_tokens == 5 * 27
        assert batch.error_file_id is None
        content = await sdk.files.content(batch.output_file_id)
        found = [json.loads(line) for line in content.text.splitlines()]
        assert [each["custom_id"] for each in found] == [f"c{number}" for number in range(5)]
        assert all(each["response"]["status_code"] == 200 for each in found)
        answers = [each["response"]["body"]["choices"][0]["text"] for each in found]
        assert answers == ["café"] * 5
        sent = engine.received[-1]
        assert sent.headers["x-vllm-priority"] == str(2**31 - 1)
        assert sent.headers["x-request-id"].startswith("batch_req_")
        assert not any("secret" in name or "tenant" in name for name in sent.headers)


async def test_a_cancelled_batch_keeps_what_was_done(tmp_path: Path) -> None:
    async with batching(tmp_path) as (engine, _, sdk):
        engine.behaviour = hang_unless_greeted
        data = lines(1) + lines(3, "h", prompt="hang")
        batch = await created(sdk, data)
        async with asyncio.timeout(WAIT_S):
            while (await sdk.batches.retrieve(batch.id)).request_counts.completed < 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (await sdk.batches.cancel(batch.id)).status == "cancelling"
        batch = await ended(sdk, batch.id)
        assert batch.status == "cancelled"
        assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 3)
        errors = (await sdk.files.content(batch.error_file_id)).text.splitlines()
        assert {json.loads(each)["error"]["code"] for each in errors} == {"batch_cancelled"}
        with pytest.raises(openai.ConflictError):
            await sdk.batches.cancel(batch.id)


async def hang_unless_greeted(exchange: Exchange) -> None:
    if exchange.received.body["prompt"] == "hello":
        await answer(exchange)
    else:
        await exchange.received.gone.wait()


async def test_lines_are_sent_again_until_somebody_answers(tmp_path: Path) -> None:
    async with batching(tmp_path) as (engine, _, sdk):
        tries = 0

        async def moody(exchange: Exchange) -> None:
            nonlocal tries
            tries += 1
            await (exchange.whole(503, b"{}") if tries % 2 else answer(exchange))

        engine.behaviour = moody
        batch = await ended(sdk, (await created(sdk, lines(3))).id)
        assert batch.request_counts.completed == 3
        assert tries >= 6


async def test_the_end_of_a_batch_is_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promises, "_INTERVAL_S", 0.05)
    gate = asyncio.Event()

    async def steadily(exchange: Exchange) -> None:
        await asyncio.sleep(0.02)
        if len(answered) >= 150:
            await gate.wait()
        answered.append(None)
        await answer(exchange)

    answered: list[None] = []
    async with batching(tmp_path, steadily) as (_, _, sdk):
        batch = await created(sdk, lines(200))
        assert batch.foretell is None, "nothing is known yet"
        async with asyncio.timeout(WAIT_S):
            while batch.foretell is None:
                await asyncio.sleep(0.01)
                batch = await sdk.batches.retrieve(batch.id)
        assert batch.status == "in_progress"
        assert batch.foretell["confidence"] == 0.9
        assert batch.created_at <= batch.foretell["done_by"] < batch.expires_at
        assert batch.foretell["in_time"]
        gate.set()
        assert (await ended(sdk, batch.id)).foretell is None


async def test_a_batch_may_be_wanted_sooner(tmp_path: Path) -> None:
    async with batching(tmp_path) as (_, scheduler, sdk):
        file = await sdk.files.create(file=("in.jsonl", lines(1)), purpose="batch")
        body = {"input_file_id": file.id, "endpoint": COMPLETIONS}
        for window, status in (("90m", 200), ("1h", 200), ("0h", 400), ("25h", 400), ("1d", 400)):
            asked = {**body, "completion_window": window}
            got = await scheduler.client.post("/v1/batches", json=asked)
            assert got.status_code == status, got.text
            if status == 200:
                batch = got.json()
                assert batch["completion_window"] == window
                assert batch["expires_at"] - batch["created_at"] in (5400, 3600)


async def test_a_batch_alone_has_an_engine_started(tmp_path: Path) -> None:
    listed = tmp_path / "instances.json"
    nobody = {"instances": [], "models": [MODEL]}
    listed.write_text(json.dumps(nobody))
    target = {"strategy": "target", "strategy_parameters": {"requests": "2"}, "minimum": 0}
    async with (
        engines(answer) as (engine,),
        batches(tmp_path, instances=str(listed), engine_wait_s=60.0) as scheduler,
        provisioning(
            tmp_path,
            schedulers=scheduler.url,
            instances=str(listed),
            batches=f"unix:{tmp_path}/b.sock",
            secret_file=str(tmp_path / "secret"),
            **target,
        ) as provisioner,
        scheduler.sdk() as sdk,
    ):
        await provisioner.until_desired(0)
        batch = await created(sdk, lines(3))
        decision = await provisioner.until_desired(1, "batches")
        assert decision["batches_due"] == 1
        listed.write_text(json.dumps([engine.config("")]))
        assert (await ended(sdk, batch.id)).request_counts.completed == 3
        await provisioner.until(lambda s: s["decision"]["batches_due"] == 0)


async def test_a_batch_waits_for_an_engine_that_has_not_been_up_yet(tmp_path: Path) -> None:
    async with engines(answer, answer) as (first, late):
        first.models = {"data": [{"id": "other"}]}
        late.health_status = 503
        listed = json.dumps([first.config(), late.config() | {"model": MODEL}])
        async with batches(tmp_path, instances=listed) as scheduler, scheduler.sdk() as sdk:
            await scheduler.until(lambda s: s["instances"][0]["healthy"])
            batch = await created(sdk, lines(3))
            await scheduler.until_metric("foretell_requests_total", 1, status="503")
            late.health_status = 200
            assert (await ended(sdk, batch.id)).request_counts.completed == 3
