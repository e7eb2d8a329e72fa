"""The endpoints other than completions: what passes, where it goes, and the form of errors."""

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from engines import (
    MODEL,
    WHOLE,
    Behaviour,
    Exchange,
    answer,
    close_before_headers,
    engines,
    gated,
    hang,
    status,
)
from schedulers import running, until
from scripted_peers import Predictor, serving

from foretell.openai.surface import ENDPOINTS

MESSAGES = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": MESSAGES, "system": "Be brief.", "max_tokens": 9},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/v1/embeddings": {"input": ["a", "b"]},
    "/v2/embed": {"texts": ["a"]},
    "/pooling": {"input": "a"},
    "/classify": {"input": "a"},
    "/score": {"queries": "a", "documents": ["b"]},
    "/v1/score": {"text_1": "a", "text_2": "b"},
    "/rerank": {"query": "a", "documents": ["b"]},
    "/v1/rerank": {"query": "a", "documents": ["b"]},
    "/v2/rerank": {"query": "a", "documents": ["b"]},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [1, 2]},
}
GENERATING = ("/v1/responses", "/v1/messages")


def saying(body: bytes, content_type: str = "application/json") -> Behaviour:
    async def behaviour(exchange: Exchange) -> None:
        await exchange.head(200, content_type, length=len(body))
        await exchange.write(body)

    return behaviour


def streaming(*events: bytes) -> Behaviour:
    async def behaviour(exchange: Exchange) -> None:
        await exchange.head(200, "text/event-stream")
        for event in events:
            await exchange.chunk(event)
        await exchange.chunk(b"")

    return behaviour


def event(kind: str, **fields: Any) -> bytes:
    data = json.dumps({"type": kind, **fields})
    return f"event: {kind}\ndata: {data}\n\n".encode()


@pytest.mark.parametrize("path", BODIES)
async def test_what_an_engine_offers_passes(tmp_path: Path, path: str) -> None:
    """Bodies come back byte for byte, and a request that one engine fails goes to another."""
    body = {"model": MODEL, **BODIES[path], "unheard_of": {"deep": [None]}}
    reply = b'{ "object": "anything", "usage": {"prompt_tokens": 3} }'
    async with (
        engines(close_before_headers, saying(reply)) as both,
        running(tmp_path, both, policy="least_outstanding") as scheduler,
    ):
        for _ in range(2):
            response = await scheduler.client.post(path, json=body)
            assert (response.status_code, response.content) == (200, reply)
            assert response.headers["x-foretell-instance"] == "engine-1"
        assert both[1].received[0].path == path
        received = both[1].received[0].body
        xargs = received.pop("vllm_xargs", None)
        assert (xargs is not None) == (path in GENERATING)
        named = received.pop("request_id", None)  # the response's id names its engine
        assert (named is not None) == (path == "/v1/responses")
        assert {**received, "vllm_xargs": None} == {**body, "vllm_xargs": None}
        wrong = await scheduler.client.post(path, json={**body, "model": "no"})
        assert wrong.status_code == 404
        assert (await scheduler.client.get(path)).status_code == 405
        await scheduler.until_idle()


async def test_who_generates_nothing_is_placed_by_load_and_no_predictor_hears_of_it(
    tmp_path: Path,
) -> None:
    sidecars = Predictor(e2e_s=1.0), Predictor(e2e_s=9.0)
    async with (
        engines(hang, hang) as both,
        serving(sidecars[0]) as first,
        serving(sidecars[1]) as second,
        running(tmp_path, both, [first, second], policy="predicted_latency") as scheduler,
    ):
        body = {"model": MODEL, "input": "a"}
        asked = [
            asyncio.create_task(scheduler.client.post("/v1/embeddings", json=body))
            for _ in range(4)
        ]
        await until(lambda: [len(engine.received) for engine in both] == [2, 2])
        for task in asked:
            task.cancel()
        await scheduler.until_idle()
        for sidecar in sidecars:
            assert (sidecar.asked, sidecar.reserved, sidecar.ended) == ([], [], [])


async def test_the_sdk_embeds_and_responds(tmp_path: Path) -> None:
    created = event("response.created", response={"id": "r", "status": "in_progress"})
    delta = event("response.output_text.delta", delta="hello", item_id="i", output_index=0)
    usage = {"input_tokens": 5, "output_tokens": 3, "total_tokens": 8}
    done = event("response.completed", response={"id": "r", "usage": usage})
    embedding = b'{"object":"list","model":"m","data":[{"object":"embedding","index":0,' + (
        b'"embedding":[0.5,1.0]}],"usage":{"prompt_tokens":1,"total_tokens":1}}'
    )
    log = tmp_path / "log"
    async with (
        engines(saying(embedding)) as (engine,),
        running(tmp_path, [engine], request_log=str(log)) as scheduler,
    ):
        sdk = scheduler.sdk()
        found = await sdk.embeddings.create(model=MODEL, input="x", encoding_format="float")
        assert found.data[0].embedding == [0.5, 1.0]
        engine.behaviour = streaming(created, delta, done)
        stream = await sdk.responses.create(
            model=MODEL, input="x", stream=True, max_output_tokens=7
        )
        kinds = [each.type async for each in stream]
        assert kinds == ["response.created", "response.output_text.delta", "response.completed"]
        await sdk.close()
        await until(lambda: bool(log.read_text()))
        (line,) = map(json.loads, log.read_text().splitlines())  # the embedding has no line
        assert (line["prompt_tokens"], line["output_tokens"]) == (5, 3)


async def test_a_response_that_fails_before_its_first_token_is_repeated(tmp_path: Path) -> None:
    """Its first events come before the first token."""
    created = event("response.created", response={"id": "r"})
    delta = event("response.output_text.delta", delta="hello")

    async def dies(exchange: Exchange) -> None:
        await exchange.head(200, "text/event-stream")
        await exchange.chunk(created)
        await exchange.hang_up()

    async with (
        engines(dies, streaming(created, delta)) as both,
        running(tmp_path, both) as scheduler,
    ):
        body = {"model": MODEL, "input": "x", "stream": True}
        for _ in range(2):
            response = await scheduler.client.post("/v1/responses", json=body)
            assert response.content == created + delta


async def test_a_response_that_breaks_off_ends_with_an_error_of_its_own_api(tmp_path: Path) -> None:
    created = event("response.created", sequence_number=0, response={"id": "r"})
    delta = event("response.output_text.delta", sequence_number=1, delta="hello")

    async def dies(exchange: Exchange) -> None:
        await exchange.head(200, "text/event-stream")
        await exchange.chunk(created + delta)
        await asyncio.sleep(0.3)  # what comes with the break is lost
        await exchange.hang_up()

    async with engines(dies) as (engine,), running(tmp_path, [engine]) as scheduler:
        sdk = scheduler.sdk()
        stream = await sdk.responses.create(model=MODEL, input="x", stream=True)
        *_, last = [each async for each in stream]
        assert (last.type, last.sequence_number) == ("error", 2)
        assert (last.code, last.message) == ("engine_lost", "the engine failed in mid-answer")
        await sdk.close()
        await scheduler.until_metric("foretell_requests_total", 1, status="502")


async def test_anthropics_clients_get_their_own_errors(tmp_path: Path) -> None:
    first = event("message_start", message={"usage": {"input_tokens": 4, "output_tokens": 0}})

    async def dies(exchange: Exchange) -> None:
        await exchange.head(200, "text/event-stream")
        await exchange.chunk(first)
        await asyncio.sleep(0.3)  # what comes with the break is lost
        await exchange.hang_up()

    async with (
        engines(dies) as (engine,),
        running(
            tmp_path, [engine], api_keys="secret", headers={"x-api-key": "secret"}
        ) as scheduler,
    ):
        body = {"model": MODEL, **BODIES["/v1/messages"], "stream": True}
        wrong_key = {"x-api-key": "wrong"}
        stranger = await scheduler.client.post("/v1/messages", json=body, headers=wrong_key)
        assert stranger.status_code == 401
        assert stranger.json()["error"]["type"] == "authentication_error"
        wrong = {**body, "messages": 5}
        response = await scheduler.client.post("/v1/messages", json=wrong)
        assert response.json()["type"] == "error"
        assert response.json()["error"]["type"] == "invalid_request_error"
        broken = await scheduler.client.post("/v1/messages", json=body)
        assert broken.content.startswith(first)
        told = broken.content.removeprefix(first).strip()
        assert told.startswith(b"event: error\ndata: ")
        assert json.loads(told.partition(b"data: ")[2])["error"]["type"] == "api_error"
        assert "x-api-key" not in engine.received[0].headers


async def test_all_headers_pass_but_those_of_one_side(tmp_path: Path) -> None:
    async with engines(answer) as (engine,), running(tmp_path, [engine]) as scheduler:
        engine.headers = {
            "x-engine": "1",
            "openai-processing-ms": "7",
            "server": "uvicorn",
            "set-cookie": "a=b",
            "keep-alive": "timeout=5",
            "x-foretell-instance": "mine",
        }
        sent = {
            "openai-organization": "org",
            "x-custom": "yes",
            "x-hop": "no",
            "connection": "x-hop, keep-alive",
            "te": "trailers",
            "cookie": "a=b",
            "x-foretell-when-late": "serve",
        }
        response = await scheduler.complete(headers=sent)
        received = engine.received[0].headers
        assert {"openai-organization", "x-custom"} <= set(received)
        assert not {"x-hop", "te", "cookie", "x-foretell-when-late"} & set(received)
        assert (response.headers["x-engine"], response.headers["openai-processing-ms"]) == (
            "1",
            "7",
        )
        assert not {"server", "set-cookie", "keep-alive"} & set(response.headers)
        assert response.headers["x-foretell-instance"] == "engine-0"
        assert response.content == WHOLE


async def test_models_and_adapters_have_cards_that_stay(tmp_path: Path) -> None:
    async with engines(answer, answer) as both:
        for engine, longest in zip(both, (4096, 2048), strict=True):
            engine.models = {
                "data": [
                    {"id": MODEL, "created": 5, "root": "org/model", "max_model_len": longest},
                    {"id": "org/adapter", "parent": MODEL, "root": "/adapters/a"},
                ]
            }
        async with running(tmp_path, both) as scheduler:
            card = (await scheduler.client.get(f"/v1/models/{MODEL}")).json()
            assert card["max_model_len"] == 2048
            assert card["created"] > 5
            listed = (await scheduler.client.get("/v1/models")).json()["data"]
            assert listed[0] == (await scheduler.client.get("/v1/models/org/adapter")).json()
            assert listed[1] == card
            assert listed[0]["parent"] == MODEL
            body = {"model": "org/adapter", "prompt": "x"}
            assert (await scheduler.client.post("/v1/completions", json=body)).status_code == 200
            assert (await scheduler.client.get("/v1/models/none")).status_code == 404


async def test_an_endpoint_that_no_engine_has_is_not_found(tmp_path: Path) -> None:
    async with (
        engines(status(404, b'{"detail":"Not Found"}')) as (engine,),
        running(tmp_path, [engine]) as scheduler,
    ):
        response = await scheduler.client.post("/v1/rerank", json={"model": MODEL})
        assert (response.status_code, response.json()) == (404, {"detail": "Not Found"})
        assert len(engine.received) == 1


async def test_callers_with_names_have_their_limits(tmp_path: Path) -> None:
    keys: dict[str, dict[str, Any]] = {
        "team": {"tokens_per_min": 60, "requests_per_min": 3, "priority": 2},
        "busy": {"concurrency": 1},
        "other": {"models": ["else"]},
    }
    for name, fields in keys.items():
        fields["sha256"] = hashlib.sha256(name.encode()).hexdigest()
    file = tmp_path / "keys.yaml"
    file.write_text(json.dumps(keys))  # which is YAML, too
    gate = asyncio.Event()
    async with (
        engines(answer) as (engine,),
        running(
            tmp_path, [engine], api_keys_file=str(file), headers={"x-api-key": "team"}
        ) as scheduler,
    ):
        response = await scheduler.complete(max_tokens=50)
        assert response.headers["x-ratelimit-limit-tokens"] == "60"
        assert int(response.headers["x-ratelimit-remaining-tokens"]) < 60
        assert response.headers["x-ratelimit-remaining-requests"] == "2"
        assert engine.received[0].headers["x-vllm-priority"] == "2"
        beyond = await scheduler.complete(max_tokens=60, min_tokens=60)
        assert beyond.status_code == 429
        assert beyond.json()["error"]["code"] == "rate_limit_exceeded"
        assert int(beyond.headers["retry-after"]) >= 1
        assert beyond.headers["x-ratelimit-limit-tokens"] == "60"

        other = {"x-api-key": "other"}
        refused = await scheduler.complete(headers=other)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "model_not_allowed")
        listed = await scheduler.client.get("/v1/models", headers=other)
        assert listed.json()["data"] == []

        engine.behaviour = gated(gate)
        busy = {"x-api-key": "busy"}
        first = asyncio.create_task(scheduler.complete(headers=busy))
        await until(lambda: len(engine.received) == 2)
        assert (await scheduler.complete(headers=busy)).status_code == 429
        gate.set()
        assert (await first).status_code == 200
        assert (await scheduler.complete(headers=busy)).status_code == 200
        assert len(engine.received) == 3


async def test_the_surface_tells_of_itself(tmp_path: Path) -> None:
    async with (
        engines(answer) as (engine,),
        running(
            tmp_path, [engine], api_keys="k", headers={"authorization": "Bearer k"}
        ) as scheduler,
    ):
        nobody = {"authorization": ""}
        told = (await scheduler.client.get("/openapi.json", headers=nobody)).json()
        assert told["openapi"].startswith("3.")
        assert {path for path, each in told["paths"].items() if "post" in each} == set(ENDPOINTS)
        form = told["paths"]["/v1/audio/transcriptions"]["post"]["requestBody"]["content"]
        assert list(form) == ["multipart/form-data"]
        page = await scheduler.client.get("/docs")
        assert page.headers["content-type"].startswith("text/html")
        assert all(path in page.text for path in ENDPOINTS)
        for path, each in told["paths"].items():
            if "get" in each and "{" not in path:
                assert (await scheduler.client.get(path)).status_code == 200, path
