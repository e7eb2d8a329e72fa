"""What the Batch API refuses, lists and keeps apart."""

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import openai
import pytest
from batch_service import COMPLETIONS, batches, batching, created, ended, lines, quick
from engines import answer, engines
from schedulers import running, until

__all__ = ["quick"]


async def test_what_is_wrong_with_the_input_is_told_by_line(tmp_path: Path) -> None:
    async with batching(tmp_path) as (_, _, sdk):
        batch = await ended(sdk, (await created(sdk, lines(2) + b"{\n")).id)
        assert batch.status == "failed"
        (error,) = batch.errors.data
        assert (error.code, error.line) == ("invalid_json_line", 3)
        batch = await ended(sdk, (await created(sdk, lines(1, model="unknown"))).id)
        assert batch.errors.data[0].code == "model_not_found"


async def test_lists_and_files(tmp_path: Path) -> None:
    async with batching(tmp_path) as (_, scheduler, sdk):
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
        for _ in range(2):  # twice over one connection
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
    async with batching(tmp_path) as (_, scheduler, sdk):
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
    async with batching(tmp_path) as (_, _, sdk):
        data = hashlib.sha256(b"seed").digest() * 400_000  # 12.8 MB, far larger than any buffer
        file = await sdk.files.create(file=("in.jsonl", data), purpose="batch")
        assert file.bytes == len(data)
        assert (await sdk.files.content(file.id)).content == data


async def test_the_same_request_with_the_same_key(tmp_path: Path) -> None:
    async with batching(tmp_path) as (_, _, sdk):
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
    # The caller may send one request a minute; batch lines do not count towards that limit.
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


async def test_only_who_knows_the_secret_is_told_what_is_due(tmp_path: Path) -> None:
    async with batches(tmp_path):
        connector = aiohttp.UnixConnector(f"{tmp_path}/b.sock")
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get("http://batch/status") as refused,
        ):
            assert refused.status == 401
