"""What an engine says of a failure, in its own words, and what is compressed on its way."""

import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engines import EVENTS, STREAM, WHOLE, Behaviour, Exchange, answer, engines, status
from schedulers import Scheduler, running

FOREVER_S = 1000.0
CHAT = {"model": "test-model", "messages": [{"role": "user", "content": "hi"}], "stream": True}
PATHS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"model": "test-model", "prompt": "hi", "stream": True},
    "/v1/chat/completions": CHAT,
    "/v1/messages": {**CHAT, "max_tokens": 5},
    "/v1/responses": {"model": "test-model", "input": "hi", "stream": True},
}
TEXT = "Failed to load image: 403"


def error(code: int, text: str = TEXT) -> dict[str, Any]:
    kind = "BadRequestError" if code < 500 else "InternalServerError"
    return {"error": {"message": text, "type": kind, "param": None, "code": code}}


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


FORMS: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "as vLLM": lambda e: b"data: " + json.dumps(e).encode() + b"\n\n",
    "compact": lambda e: b"data: " + compact(e) + b"\n\n",
    "no blank": lambda e: b"data:" + compact(e) + b"\n\n",
    "CRLF": lambda e: b"data: " + compact(e) + b"\r\n\r\n",
    "a comment first": lambda e: b": on its way\n\ndata: " + compact(e) + b"\n\n",
    "a name": lambda e: b"event: error\ndata: " + compact(e) + b"\n\n",
    "later": lambda e: b'data: {"object":"error",' + compact(e)[1:] + b"\n\n",
    "two lines": lambda e: b'data: {"error":\ndata: ' + compact(e["error"]) + b"}\n\n",
}


def streaming(*parts: bytes) -> Behaviour:
    async def behaviour(exchange: Exchange) -> None:
        await exchange.head(200, "text/event-stream; charset=utf-8")
        for part in parts:
            await exchange.chunk(part)
        await exchange.chunk(b"")

    return behaviour


async def posted(scheduler: Scheduler, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    response = await scheduler.client.post(path, json=body)
    return response.status_code, response.json()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("form", FORMS)
async def test_an_error_of_the_client_is_passed_on_after_one_attempt(
    tmp_path: Path, path: str, form: str
) -> None:
    bad = streaming(FORMS[form](error(400)), b"data: [DONE]\n\n")
    async with (
        engines(bad, bad) as both,
        running(tmp_path, both, health_interval_s=FOREVER_S) as scheduler,
    ):
        code, body = await posted(scheduler, path, PATHS[path])
        assert (code, body["error"]["message"]) == (400, TEXT)
        assert sum(len(engine.received) for engine in both) == 1
        assert await scheduler.metric("foretell_retries_total") == 0
        await scheduler.until_idle()


async def test_the_typed_errors_of_other_apis_are_told_too(tmp_path: Path) -> None:
    said = {"type": "error", "error": {"type": "invalid_request_error", "message": TEXT}}
    begun = b'event: response.created\ndata: {"type":"response.created","response":{}}\n\n'
    failed = {"type": "response.failed", "response": {"error": {"code": "400", "message": TEXT}}}
    cases = [
        ("/v1/messages", b"event: error\ndata: " + compact(said) + b"\n\n"),
        ("/v1/responses", begun + b"event: response.failed\ndata: " + compact(failed) + b"\n\n"),
    ]
    for path, stream in cases:
        async with (
            engines(streaming(stream)) as (engine,),
            running(tmp_path, [engine], health_interval_s=FOREVER_S) as scheduler,
        ):
            code, body = await posted(scheduler, path, PATHS[path])
            assert (code, body["error"]["message"]) == (400, TEXT)
            assert len(engine.received) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engines_failure_keeps_its_text(tmp_path: Path, stream: bool) -> None:
    text = "CUDA out of memory"
    for bad in (status(500, compact(error(500, text))), status(503, text.encode())):
        async with (
            engines(bad, bad) as both,
            running(tmp_path, both, health_interval_s=FOREVER_S) as scheduler,
        ):
            response = await scheduler.complete(stream=stream)
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "engine_failed"
            assert text in response.json()["error"]["message"]
            await scheduler.until_idle()


async def test_a_failure_told_in_a_stream_is_repaired_and_keeps_its_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = streaming(FORMS["as vLLM"](error(500, "EngineCore died")))
    async with (
        engines(bad, answer) as both,
        running(tmp_path, both, health_interval_s=FOREVER_S) as scheduler,
    ):
        for _ in range(2):
            assert (await scheduler.complete(stream=True)).content == STREAM
        assert "EngineCore died" in caplog.text
        both[1].behaviour = bad
        response = await scheduler.complete(stream=True)
        assert response.status_code == 503
        assert "EngineCore died" in response.json()["error"]["message"]


async def test_what_is_the_gateways_own_fault_is_for_the_log_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An engine that refuses our key."""
    bad = status(401, compact(error(401, "wrong key sk-1")))
    async with (
        engines(bad) as (engine,),
        running(tmp_path, [engine], health_interval_s=FOREVER_S) as scheduler,
    ):
        response = await scheduler.complete()
        assert response.status_code == 503
        assert "sk-1" not in response.text
        assert "wrong key" in caplog.text


async def test_a_failure_whose_text_never_comes_is_not_waited_for(tmp_path: Path) -> None:
    async def half(exchange: Exchange) -> None:
        await exchange.head(500, "application/json", length=1000)
        await exchange.write(b"{")
        await exchange.received.gone.wait()

    async with (
        engines(half, answer) as both,
        running(tmp_path, both, health_interval_s=FOREVER_S) as scheduler,
    ):
        for _ in range(2):
            assert (await scheduler.complete()).content == WHOLE


def _deflated(data: bytes) -> bytes:
    raw = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return raw.compress(data) + raw.flush()


CODINGS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("X-GZip", gzip.compress),
    "members": ("gzip", lambda data: gzip.compress(data[:50]) + gzip.compress(data[50:])),
    "zlib": ("deflate", zlib.compress),
    "raw deflate": ("deflate", _deflated),
}


def coded(coding: str, encode: Callable[[bytes], bytes], cut: int = 1 << 20) -> Behaviour:
    async def behaviour(exchange: Exchange) -> None:
        exchange.headers = {"content-encoding": coding, "vary": "accept-encoding"}
        stream = exchange.received.body.get("stream")
        data = encode(b"".join(EVENTS) if stream else WHOLE)
        await exchange.head(200, "text/event-stream" if stream else "application/json")
        for at in range(0, len(data), cut):
            await exchange.chunk(data[at : at + cut])
        await exchange.chunk(b"")

    return behaviour


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", CODINGS)
async def test_a_compressed_answer_is_decoded(tmp_path: Path, name: str, stream: bool) -> None:
    for cut in (1 << 20, 1):
        async with (
            engines(coded(*CODINGS[name], cut)) as (engine,),
            running(tmp_path, [engine], health_interval_s=FOREVER_S) as scheduler,
        ):
            response = await scheduler.complete(stream=stream)
            assert (response.status_code, response.content) == (200, STREAM if stream else WHOLE)
            assert "content-encoding" not in response.headers
            assert len(engine.received) == 1
            await scheduler.until_metric("foretell_output_tokens_total", 20)


@pytest.mark.parametrize("stream", [False, True])
async def test_what_nobody_here_can_decode_is_passed_on_with_its_header(
    tmp_path: Path, stream: bool
) -> None:
    async with (
        engines(coded("x-secret", lambda data: b"\x00\xff" + data[::-1])) as (engine,),
        running(tmp_path, [engine], health_interval_s=FOREVER_S) as scheduler,
    ):
        response = await scheduler.complete(stream=stream)
        assert response.status_code == 200
        assert response.headers["content-encoding"] == "x-secret"
        assert response.content[2:][::-1] == (STREAM if stream else WHOLE)
        assert len(engine.received) == 1


async def test_bytes_that_are_not_what_they_say_and_bombs_are_failures(tmp_path: Path) -> None:
    bomb = gzip.compress(bytes(200 << 20))
    for data in (b"this is no gzip", bomb):
        bad = coded("gzip", lambda _, data=data: data)
        async with (
            engines(bad, answer) as both,
            running(tmp_path, both, health_interval_s=FOREVER_S) as scheduler,
        ):
            for stream in (False, True):
                response = await scheduler.complete(stream=stream)
                assert response.content == (STREAM if stream else WHOLE)
            assert await scheduler.metric("foretell_retries_total", reason="undecodable") >= 1
