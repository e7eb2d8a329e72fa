"""Files and batches with OpenAI's client, by way of a scheduler, and the worker behind them."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import openai
import pytest
from engines import MODEL, Engine, Exchange, answer, engines
from openai import AsyncOpenAI
from provisioners import provisioning
from schedulers import WAIT_S, Scheduler, running, until

from foretell.batch import promises
from foretell.config import BatchSettings
from foretell.services.batch import __main__ as batch_main
from foretell.services.batch import executor

COMPLETIONS = "/v1/completions"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for others longer than a test likes."""
    monkeypatch.setattr(executor, "_LOOK_S", 0.02)
    monkeypatch.setattr(executor, "_FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(batch_main, "LOOK_S", 0.02)


def lines(count: int, name: str = "c", **changes: Any) -> bytes:
    body = {"model": MODEL, "prompt": "hello", **changes}
    return b"".join(
        json.dumps(
            {"custom_id": f"{name}{number}", "method": "POST", "url": COMPLETIONS, "body": body}
        ).encode()
        + b"\n"
        for number in range(count)
    )


@asynccontextmanager
async def batches(
    folder: Path, engines: Sequence[Engine] = (), **changes: Any
) -> AsyncIterator[Scheduler]:
    """A scheduler with a batch service."""
    secret = folder / "secret"
    secret.write_text("a shared secret\n")
    address = f"unix:{folder}/b.sock"
    stop = asyncio.Event()
    async with running(
        folder, engines, batches=address, secret_file=str(secret), **changes
    ) as scheduler:
        settings = BatchSettings(
            folder=str(folder / "batches"),
            listen=address,
            schedulers=scheduler.url,
            secret_file=str(secret),
            ready_file=str(folder / "batch.ready"),
        )
        (folder / "batch.ready").unlink(missing_ok=True)
        task = asyncio.create_task(batch_main.serve(settings, stop))
        try:
            await until(lambda: (folder / "batch.ready").exists() or task.done())
            yield scheduler
        finally:
            stop.set()
            await task


async def ended(sdk: AsyncOpenAI, batch_id: str) -> Any:
    async with asyncio.timeout(WAIT_S):
        while True:
            batch = await sdk.batches.retrieve(batch_id)
            if batch.status in ("completed", "failed", "expired", "cancelled"):
                return batch
            await asyncio.sleep(0.01)


async def created(sdk: AsyncOpenAI, data: bytes, **fields: Any) -> Any:
    file = await sdk.files.create(file=("in.jsonl", data), purpose="batch")
    return await sdk.batches.create(
        input_file_id=file.id, endpoint=COMPLETIONS, completion_window="24h", **fields
    )


async def test_a_batch_from_its_file_to_its_output(tmp_path: Path) -> None:
    async with (
        engines(answer) as (engine,),
        batches(tmp_path, [engine]) as scheduler,
        scheduler.sdk() as sdk,
    ):
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


async def test_what_is_wrong_with_the_input_is_told_by_line(tmp_path: Path) -> None:
    async with (
        engines(answer) as (engine,),
        batches(tmp_path, [engine]) as scheduler,
        scheduler.sdk() as sdk,
    ):
        batch = await ended(sdk, (await created(sdk, lines(2) + b"{\n")).id)
        assert batch.status == "failed"
        (error,) = batch.errors.data
        assert (error.code, error.line) == ("invalid_json_line", 3)
        batch = await ended(sdk, (await created(sdk, lines(1, model="unknown"))).id)
        assert batch.errors.data[0].code == "model_not_found"


async def test_a_cancelled_batch_keeps_what_was_done(tmp_path: Path) -> None:
    async with (
        engines(answer) as (engine,),
        batches(tmp_path, [engine]) as scheduler,
        scheduler.sdk() as sdk,
    ):
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


async def test_lists_and_files(tmp_path: Path) -> None:
    async with (
        engines(answer) as (engine,),
        batches(tmp_path, [engine]) as scheduler,
        scheduler.sdk() as sdk,
    ):
        made = [(await created(sdk, lines(1))).id for _ in range(3)]
        listed = [batch.id async for batch in sdk.batches.list(limit=2)]
        assert listed == made[::-1]
        for batch_id in made:
            await ended(sdk, batch_id)
        files = [file async for file in sdk.files.list(purpose="batch", limit=2)]
        assert [file.filename for file in files] == ["in.jsonl"] * 3
        file = await sdk.files.retrieve(files[0].id)
        assert (file.bytes, file.purpose) == (len(lines(1)), "batch")
        assert file.expires_at == file.created_at + 30 * 86_400
        assert (await sdk.files.content(file.id)).content == lines(1)
        for _ in range(2):  # over one connection
            head = await scheduler.client.head(f"/v1/files/{file.id}/content")
            assert (head.status_code, head.content) == (200, b"")
            assert head.headers["content-length"] == str(len(lines(1)))
        assert (await sdk.files.delete(file.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await sdk.files.retrieve(file.id)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "param"),
    [
        ("GET", "/v1/batches/batch_1", None, 404, "batch_id"),
        ("GET", "/v1/files/file-1/content", None, 404, "id"),
        ("GET", "/v1/batches?limit=101", None, 400, "limit"),
        ("GET", "/v1/batches?after=unknown", None, 400, "after"),
        ("GET", "/v1/files?order=odd", None, 400, "order"),
        ("POST", "/v1/batches", {}, 400, "input_file_id"),
        ("POST", "/v1/batches", [], 400, None),
        ("POST", "/v1/files", {}, 400, "file"),
        ("PUT", "/v1/files", None, 405, None),
        ("GET", "/v1/files/a/b/c", None, 404, None),
        ("GET", "/v1/files/%2e%2e/%2e%2e/health", None, 404, None),
        ("GET", "/v1/files/%3flimit=1", None, 404, "id"),
    ],
)
async def test_errors_have_openais_shape(
    tmp_path: Path, method: str, path: str, body: Any, status: int, param: str | None
) -> None:
    async with engines(answer) as (engine,), batches(tmp_path, [engine]) as scheduler:
        got = await scheduler.client.request(method, path, json=body)
        assert got.status_code == status, got.text
        assert got.json()["error"]["param"] == param
        assert got.json()["error"]["message"]


async def test_bad_uploads(tmp_path: Path) -> None:
    async with (
        engines(answer) as (engine,),
        batches(tmp_path, [engine]) as scheduler,
        scheduler.sdk() as sdk,
    ):
        client = scheduler.client
        with pytest.raises(openai.BadRequestError, match="purpose"):
            await sdk.files.create(file=("a", b"x"), purpose="fine-tune")
        files = {"file": ("a", b"x")}
        got = await client.post("/v1/files", files=files)
        assert (got.status_code, got.json()["error"]["param"]) == (400, "purpose")
        short = {"purpose": "batch", "expires_after[anchor]": "created_at"}
        short["expires_after[seconds]"] = "10"
        got = await client.post("/v1/files", files=files, data=short)
        assert got.json()["error"]["param"] == "expires_after.seconds"
        headers = {"content-type": "multipart/form-data; boundary=x"}
        got = await client.post("/v1/files", content=b"--y\r\nnothing", headers=headers)
        assert got.status_code == 400
        assert not (await sdk.files.list()).data
        assert not list((tmp_path / "batches" / "files").iterdir())


async def test_a_large_file_passes_through(tmp_path: Path) -> None:
    async with (
        engines(answer) as (engine,),
        batches(tmp_path, [engine]) as scheduler,
        scheduler.sdk() as sdk,
    ):
        data = hashlib.sha256(b"seed").digest() * 400_000  # 12.8 MB, far above any one buffer
        file = await sdk.files.create(file=("in.jsonl", data), purpose="batch")
        assert file.bytes == len(data)
        assert (await sdk.files.content(file.id)).content == data


async def test_the_same_request_with_the_same_key(tmp_path: Path) -> None:
    async with (
        engines(answer) as (engine,),
        batches(tmp_path, [engine]) as scheduler,
        scheduler.sdk() as sdk,
    ):
        first = await created(sdk, lines(1), extra_headers={"Idempotency-Key": "k"})
        fields = {"endpoint": COMPLETIONS, "completion_window": "24h"}
        again = await sdk.batches.create(
            input_file_id=first.input_file_id, extra_headers={"Idempotency-Key": "k"}, **fields
        )
        assert again.id == first.id
        with pytest.raises(openai.ConflictError) as conflict:
            await created(sdk, lines(2), extra_headers={"Idempotency-Key": "k"})
        assert conflict.value.response.headers["x-should-retry"] == "false"


async def test_callers_see_their_own_only_and_their_lines_are_theirs(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    digest = {name: hashlib.sha256(f"key-{name}".encode()).hexdigest() for name in ("a", "b")}
    # One request a minute: lines of a batch do not spend what a caller may do at once.
    keys.write_text(
        f"ä b: {{sha256: {digest['a']}, requests_per_min: 1}}\nb: {{sha256: {digest['b']}}}\n"
    )
    async with (
        engines(answer) as (engine,),
        batches(
            tmp_path, [engine], api_keys_file=str(keys), headers={"authorization": "Bearer key-a"}
        ) as scheduler,
        scheduler.sdk("key-a") as ours,
        scheduler.sdk("key-b") as theirs,
        scheduler.sdk("nobody's") as nobodys,
    ):
        batch = await created(ours, lines(4))
        with pytest.raises(openai.NotFoundError):
            await theirs.batches.retrieve(batch.id)
        with pytest.raises(openai.NotFoundError):
            await theirs.files.content(batch.input_file_id)
        assert not (await theirs.batches.list()).data
        with pytest.raises(openai.AuthenticationError):
            await nobodys.batches.list()
        assert (await ended(ours, batch.id)).request_counts.completed == 4
        assert await scheduler.metric("foretell_tenant_tokens_total", tenant="ä b") == 4 * 27
        forged = {"x-foretell-secret": "wrong", "x-foretell-tenant": "b"}
        got = await scheduler.client.get("/v1/batches", headers=forged)
        assert [each["id"] for each in got.json()["data"]] == [batch.id], "it is a's key"


async def test_lines_are_sent_again_until_somebody_answers(tmp_path: Path) -> None:
    async with (
        engines(answer) as (engine,),
        batches(tmp_path, [engine]) as scheduler,
        scheduler.sdk() as sdk,
    ):
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
    async with (
        engines(steadily) as (engine,),
        batches(tmp_path, [engine]) as scheduler,
        scheduler.sdk() as sdk,
    ):
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
    async with (
        engines(answer) as (engine,),
        batches(tmp_path, [engine]) as scheduler,
        scheduler.sdk() as sdk,
    ):
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


async def test_without_a_batch_service(tmp_path: Path) -> None:
    async with (
        engines(answer) as (engine,),
        running(tmp_path, [engine]) as scheduler,
        scheduler.sdk() as sdk,
    ):
        with pytest.raises(openai.NotFoundError, match="no batch service"):
            await sdk.files.list()
    nowhere = f"unix:{tmp_path}/nowhere.sock"
    async with (
        engines(answer) as (engine,),
        running(tmp_path, [engine], batches=nowhere) as scheduler,
        scheduler.sdk() as sdk,
    ):
        with pytest.raises(openai.InternalServerError, match="does not answer") as error:
            await sdk.files.list()
        assert error.value.status_code == 503


async def test_a_client_that_leaves_in_its_upload_leaves_nothing(tmp_path: Path) -> None:
    async with engines(answer) as (engine,), batches(tmp_path, [engine]) as scheduler:

        async def endless() -> AsyncIterator[bytes]:
            head = '--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
            yield head.encode()
            for _ in range(40):
                yield b"y" * 100_000
            raise ConnectionError("the client leaves")

        headers = {"content-type": "multipart/form-data; boundary=x"}
        with pytest.raises((ConnectionError, httpx.HTTPError)):
            await scheduler.client.post("/v1/files", content=endless(), headers=headers)
        folder = tmp_path / "batches" / "files"
        await until(lambda: not list(folder.iterdir()))
        listed = await scheduler.client.get("/v1/files")
        assert not listed.json()["data"]


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


async def test_only_who_knows_the_secret_is_told_what_is_due(tmp_path: Path) -> None:
    async with batches(tmp_path):
        connector = aiohttp.UnixConnector(f"{tmp_path}/b.sock")
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get("http://batch/status") as refused,
        ):
            assert refused.status == 401


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
