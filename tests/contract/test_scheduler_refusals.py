"""What the scheduler refuses and how, without sending it to any engine."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from engines import MODEL, Engine, answer, engines, gated, hang
from schedulers import WAIT_S, running, until
from scripted_peers import Predictor, Tagger, serving

KEYS = "client-key-1, client-key-2"


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The OpenAI-shaped error of a response that must have `status`."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    return error


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with engines(answer) as made:
        yield made[0]


COMPLETION = {"model": MODEL, "prompt": "hi"}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


async def test_what_the_engine_judges_is_the_engines_to_refuse(
    tmp_path: Path, engine: Engine
) -> None:
    """A picture of 5 MB, a prompt that is only echoed, and no model where there is only one."""
    url = "data:image/png;base64," + "A" * 7_000_000
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
    async with running(tmp_path, [engine]) as scheduler:
        for path, body in (
            ("chat/completions", {**CHAT, "messages": [picture]}),
            ("completions", {**COMPLETION, "max_tokens": 0, "echo": True, "logprobs": 1}),
            ("completions", {"prompt": "hi"}),
            ("completions", {**COMPLETION, "model": None}),
        ):
            response = await scheduler.client.post(f"/v1/{path}", json=body)
            assert response.status_code == 200, response.text
            sent = engine.received[-1].body
            assert {name: sent.get(name) for name in body} == body


@pytest.mark.parametrize("stream", [False, True])
async def test_a_wrong_field_is_named_and_no_engine_hears_of_it(
    tmp_path: Path, engine: Engine, stream: bool
) -> None:
    cases: list[tuple[str, dict[str, Any], int, str | None]] = [
        ("completions", {"model": 5}, 400, "model"),
        ("completions", {"model": "gpt-9"}, 404, "model"),
        ("completions", {"model": "\ud800"}, 404, "model"),
        ("completions", {"prompt": None}, 400, "prompt"),
        ("completions", {"max_tokens": -1}, 400, "max_tokens"),
        ("completions", {"max_tokens": 10**30}, 400, "max_tokens"),
        ("completions", {"n": "two"}, 400, "n"),
        ("chat/completions", {"messages": None}, 400, "messages"),
        ("chat/completions", {"messages": [{"role": "user", "content": 5}]}, 400,
         "messages[0].content"),
        ("chat/completions", {"max_completion_tokens": -1}, 400, "max_completion_tokens"),
    ]  # fmt: skip
    async with running(tmp_path, [engine]) as scheduler:
        for endpoint, fields, status, param in cases:
            good = COMPLETION if endpoint == "completions" else CHAT
            body = json.dumps({**good, "stream": stream, **fields})
            response = await scheduler.client.post(f"/v1/{endpoint}", content=body)
            assert error_of(response, status)["param"] == param, fields
        for raw in (b"", b"{", b"[1]", b'{"temperature": NaN}', b"[" * 50_000, b"\xff\xfe"):
            response = await scheduler.client.post("/v1/completions", content=raw)
            assert error_of(response, 400)["code"] == "json_invalid", raw
        assert engine.received == []
        refused = await scheduler.metric("foretell_requests_total", status="400", model_name="")
        assert refused == sum(status == 400 for _, _, status, _ in cases) + 6
        assert (await scheduler.status())["in_progress"] == 0


async def test_unknown_paths_and_methods_have_the_same_shape(
    tmp_path: Path, engine: Engine
) -> None:
    async with running(tmp_path, [engine]) as scheduler:
        error_of(await scheduler.client.post("/v1/nothing", json={}), 404)
        for method, path, allowed in (
            ("GET", "/v1/completions", "POST, OPTIONS"),
            ("PATCH", "/v1/models", "GET, HEAD, OPTIONS"),
            ("TRACE", "/v1/responses/resp_1", "GET, HEAD, POST, DELETE, OPTIONS"),
        ):
            response = await scheduler.client.request(method, path)
            error_of(response, 405)
            assert response.headers["allow"] == allowed
        error_of(await scheduler.client.request("PROPFIND", "/v1/models"), 501)


async def test_no_engine_ever_up_is_a_503(tmp_path: Path, engine: Engine) -> None:
    engine.health_status = 500
    async with running(tmp_path, [engine], all_up=False) as scheduler:
        await until(lambda: engine.probes >= 2)
        for response in (await scheduler.complete(), await scheduler.client.get("/ready")):
            assert error_of(response, 503)["code"] == "no_instance"
            assert int(response.headers["retry-after"]) > 0
        assert (await scheduler.client.get("/health")).status_code == 200


async def test_a_body_too_long_is_refused_declared_or_not(tmp_path: Path, engine: Engine) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 1000

    async with running(tmp_path, [engine], max_body_bytes=10_000) as scheduler:
        declared = await scheduler.client.post("/v1/completions", content=b" " * 10_001)
        assert error_of(declared, 413)["code"] == "request_too_large"
        chunked = await scheduler.client.post("/v1/completions", content=chunks())
        assert "content-length" not in chunked.request.headers
        assert error_of(chunked, 413)["code"] == "request_too_large"
        just_right = json.dumps(COMPLETION).encode().ljust(10_000)
        response = await scheduler.client.post("/v1/completions", content=just_right)
        assert response.status_code == 200
        assert len(engine.received) == 1


async def test_the_connection_survives_an_early_refusal(tmp_path: Path, engine: Engine) -> None:
    """The rest of a refused body must not be taken for the next request."""
    smuggled = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"
    good = json.dumps(COMPLETION).encode()
    async with running(tmp_path, [engine], max_body_bytes=200) as scheduler:
        reader, writer = await asyncio.open_connection(scheduler.host, scheduler.port)
        body = smuggled * 10_000
        head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
        writer.write((head % len(body)).encode())
        assert await read_status(reader) == 413
        writer.write(body + (head % len(good)).encode() + good)
        assert await read_status(reader) == 200
        writer.close()
        assert len(engine.received) == 1
        assert await scheduler.metric("foretell_requests_total", status="413") == 1
        assert await scheduler.metric("foretell_requests_total") == 2


async def read_status(reader: asyncio.StreamReader) -> int:
    """Read one response with a declared length; its status."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = next(x.split(":")[1] for x in head.split("\r\n") if x.startswith("content-length"))
    await reader.readexactly(int(length))
    return int(head.split(" ")[1])


async def test_a_key_is_needed_where_keys_are_set(
    tmp_path: Path, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "foretell.services")
    caplog.set_level(logging.INFO, "uvicorn")
    log = tmp_path / "requests.jsonl"
    async with running(
        tmp_path,
        [engine],
        headers={"authorization": "Bearer client-key-2"},
        api_keys=KEYS,
        engine_api_key="engine-secret",
        request_log=str(log),
    ) as scheduler:
        url = f"{scheduler.url}/v1/completions"
        wrong = (
            *("", "Bearer", "Bearer nope", "Basic client-key-1", "client-key-1"),
            *("Bearer client-key-1,", "Bearer client-key-1, client-key-2", "Bearer caf\u00e9"),
        )
        async with httpx.AsyncClient() as stranger:
            for value in wrong:
                headers = {"authorization": value.encode()} if value else {}
                response = await stranger.post(url, json=COMPLETION, headers=headers)
                assert error_of(response, 401)["code"] == "invalid_api_key", value
            for path in ("/v1/models", "/status"):
                error_of(await stranger.get(scheduler.url + path), 401)
            for path in ("/health", "/ready", "/metrics"):
                assert (await stranger.get(scheduler.url + path)).status_code == 200
        assert engine.received == []

        for key in ("client-key-1", "client-key-2"):
            sdk = scheduler.sdk(key)
            result = await sdk.completions.create(**COMPLETION)
            assert result.choices[0].text == "caf\u00e9"
            await sdk.close()
        assert [r.headers["authorization"] for r in engine.received] == ["Bearer engine-secret"] * 2
        for received in engine.received:
            assert "client-key" not in repr((received.headers, received.raw))
        await until(lambda: len(log.read_text().splitlines()) == 2)
    for text in (log.read_text(), caplog.text):
        assert "client-key" not in text
        assert "engine-secret" not in text


async def test_the_tagger_is_told_tenants_apart_by_their_keys_but_no_key(
    tmp_path: Path, engine: Engine
) -> None:
    tagger = Tagger()
    async with (
        serving(tagger) as address,
        running(
            tmp_path,
            [engine],
            tagger=address,
            headers={"authorization": "Bearer client-key-1"},
            api_keys=KEYS,
        ) as scheduler,
    ):
        for key in ("client-key-1", "client-key-2", "client-key-1"):
            await scheduler.complete(headers={"authorization": f"Bearer {key}"})
        await until(lambda: len(tagger.asked) == 3)
        assert [request.tenant for request in tagger.asked] == ["1", "2", "1"]
        assert "client-key" not in repr(tagger.asked)


async def test_the_engine_sees_no_key_where_none_is_set(tmp_path: Path, engine: Engine) -> None:
    async with running(tmp_path, [engine]) as scheduler:
        await scheduler.complete(headers={"authorization": "Bearer mine", "cookie": "a=b"})
        assert "authorization" not in engine.received[0].headers
        assert "cookie" not in engine.received[0].headers


async def test_beyond_the_limit_there_is_429_until_one_ends(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with (
        engines(gated(gate)) as (engine,),
        serving(Predictor(e2e_s=60.0 + WAIT_S)) as address,
        running(
            tmp_path, [engine], [address], policy="slo", max_concurrent_requests=2
        ) as scheduler,
    ):
        first = [asyncio.create_task(scheduler.complete(stream=s)) for s in (True, False)]
        await until(lambda: len(engine.received) == 2)
        refused = await scheduler.complete()
        assert error_of(refused, 429)["type"] == "rate_limit_error"
        assert refused.headers["retry-after"] == "60", "the answers are predicted to take longer"
        assert len(engine.received) == 2
        gate.set()
        assert [(await task).status_code for task in first] == [200, 200]
        await scheduler.until_idle()
        assert (await scheduler.complete()).status_code == 200


async def test_the_limit_counts_requests_whose_bodies_are_on_the_way(
    tmp_path: Path, engine: Engine
) -> None:
    """Bodies that are still arriving take memory before any of them is relayed."""
    async with running(tmp_path, [engine], max_concurrent_requests=3) as scheduler:
        writers = []
        for _ in range(3):
            _, writer = await asyncio.open_connection(scheduler.host, scheduler.port)
            writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{")
            writers.append(writer)
        await scheduler.until(lambda s: s["in_progress"] == 3)
        error_of(await scheduler.complete(), 429)
        for writer in writers:
            writer.close()
        await scheduler.until_idle()
        assert (await scheduler.complete()).status_code == 200
        await scheduler.until_metric("foretell_requests_total", 3, status="499")
        assert len(engine.received) == 1


async def test_request_ids_are_honoured_or_replaced_never_injected(
    tmp_path: Path, engine: Engine
) -> None:
    async with running(tmp_path, [engine]) as scheduler:
        ids: list[str] = []
        for given in ("mine-1", "a" * 128, "trace:1.2_3", "mine-1"):
            response = await scheduler.complete(headers={"x-request-id": given})
            assert response.headers["x-request-id"] == given
            assert engine.received[-1].headers["x-request-id"] == given
            ids.append(engine.received[-1].body["vllm_xargs"]["foretell_id"])
        assert len(set(ids)) == len(ids)  # attempts' ids are the scheduler's own and unique
        for given in ("", "a" * 129, "two words", 'q"', "caf\u00e9", "a,b", "{}"):
            response = await scheduler.complete(headers={"x-request-id": given.encode()})
            own = response.headers["x-request-id"]
            assert own != given
            assert own.isalnum()
            assert engine.received[-1].headers["x-request-id"] == own
        error = await scheduler.complete(prompt="x", headers={"x-request-id": "a\tb"})
        assert "\t" not in error.headers["x-request-id"]


async def test_a_trace_context_that_is_no_text_does_no_harm(tmp_path: Path, engine: Engine) -> None:
    async with running(tmp_path, [engine]) as scheduler:
        trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        await scheduler.complete(headers={"traceparent": trace, "tracestate": "a=1"})
        assert engine.received[0].headers["traceparent"] == trace
        assert engine.received[0].headers["tracestate"] == "a=1"
        response = await scheduler.complete(headers={"traceparent": b"\xe9\xff"})
        assert response.status_code == 200
        assert "traceparent" not in engine.received[1].headers


async def test_a_body_that_never_ends_is_given_up(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foretell.services.http.exchange.BODY_DEADLINE_S", 0.05)
    async with running(tmp_path, [engine]) as scheduler:
        reader, writer = await asyncio.open_connection(scheduler.host, scheduler.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{")
        assert await read_status(reader) == 408
        writer.close()
        assert (await scheduler.status())["in_progress"] == 0
        assert engine.received == []


async def test_models_are_those_of_all_engines(tmp_path: Path) -> None:
    async with engines(answer, hang) as (real, emulated):
        emulated.models = {"data": [{"id": "other", "owned_by": "foretell-emulated"}]}
        async with running(tmp_path, [real, emulated]) as scheduler:
            sdk = scheduler.sdk()
            cards = {m.id: m.owned_by async for m in await sdk.models.list()}
            await sdk.close()
            assert cards == {MODEL: "foretell", "other": "foretell-emulated"}
            for _ in range(4):  # round robin, but only one engine serves this model
                assert (await scheduler.complete()).status_code == 200
            assert emulated.received == []
            healthy = await scheduler.metric(
                "foretell_instance_healthy", instance_id="engine-1", engine="emulated"
            )
            assert healthy == 1
