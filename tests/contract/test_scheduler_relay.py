"""Requests and answers pass through the scheduler unchanged."""

import asyncio
import json
from pathlib import Path

import pytest
from engines import (
    EVENTS,
    MODEL,
    REFUSAL,
    STREAM,
    WHOLE,
    Exchange,
    answer,
    break_after,
    engines,
    gated,
    status,
)
from openai import APIError, BadRequestError
from schedulers import running, until
from scripted_peers import Predictor, serving


async def test_streamed_bytes_are_the_engines(tmp_path: Path) -> None:
    async with engines(answer) as (engine,), running(tmp_path, [engine]) as scheduler:
        response = await scheduler.complete(stream=True)
        assert response.content == STREAM
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert engine.received[0].path == "/v1/completions"


@pytest.mark.parametrize("cut", [1, 2, 3, 7, 50])
async def test_cut_anywhere_the_events_stay_the_same(tmp_path: Path, cut: int) -> None:
    async def crumble(exchange: Exchange) -> None:
        await exchange.head(200, "text/event-stream")
        for start in range(0, len(body), cut):
            await exchange.chunk(body[start : start + cut])
        await exchange.chunk(b"")

    body = STREAM.replace(b"\n\n", b"\r\n\r\n") + b"no line end"
    async with engines(crumble) as (engine,), running(tmp_path, [engine]) as scheduler:
        content = (await scheduler.complete(stream=True)).content
        assert content == STREAM + b"no line end"  # line ends may become vLLM's


async def test_an_event_is_passed_on_when_it_comes(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with (
        engines(gated(gate, first=2)) as (engine,),
        running(tmp_path, [engine]) as scheduler,
        scheduler.client.stream(
            "POST", "/v1/completions", json={"model": MODEL, "prompt": "x", "stream": True}
        ) as response,
    ):
        early = b""
        chunks = response.aiter_raw()
        while len(early) < len(EVENTS[0] + EVENTS[1]):
            early += await anext(chunks)
        assert early == EVENTS[0] + EVENTS[1]
        gate.set()
        assert early + b"".join([chunk async for chunk in chunks]) == STREAM


async def test_an_event_without_end_is_passed_on_in_bounded_memory(tmp_path: Path) -> None:
    async def endless(exchange: Exchange) -> None:
        await exchange.head(200, "text/event-stream")
        await exchange.chunk(b"data: ")
        for _ in range(80):
            await exchange.chunk(b"x" * 65_536)
        await exchange.chunk(b"")

    async with engines(endless) as (engine,), running(tmp_path, [engine]) as scheduler:
        assert (await scheduler.complete(stream=True)).content == b"data: " + b"x" * 65_536 * 80


async def test_unstreamed_bytes_are_the_engines(tmp_path: Path) -> None:
    async with engines(answer) as (engine,), running(tmp_path, [engine]) as scheduler:
        response = await scheduler.complete()
        assert response.content == WHOLE
        assert response.headers["content-type"] == "application/json"
        assert response.headers["content-length"] == str(len(WHOLE))


@pytest.mark.parametrize("stream", [False, True])
async def test_the_engine_gets_what_the_client_sent(tmp_path: Path, stream: bool) -> None:
    sent = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "caf\u00e9 \U0001f600 \u2028"}],
        "stream": stream,
        "temperature": 0.1,
        "logit_bias": {"7": -100},
        "unheard_of": [None, {"deep": 1e-7}],
    }
    async with engines(answer) as (engine,), running(tmp_path, [engine]) as scheduler:
        await scheduler.client.post("/v1/chat/completions", json=sent)
        received = engine.received[0].body
        xargs = received.pop("vllm_xargs")
        assert received == sent | ({"return_token_ids": True} if stream else {})
        assert set(xargs) == {"foretell_id", "foretell_predicted_tokens"}
        assert engine.received[0].path == "/v1/chat/completions"


async def test_headers_tell_where_and_what_was_predicted(tmp_path: Path) -> None:
    async with (
        engines(answer) as (engine,),
        serving(Predictor(e2e_s=2.5, calibration_steps=412)) as address,
        running(tmp_path, [engine], [address], policy="predicted_latency") as scheduler,
    ):
        for stream in (False, True):
            headers = (await scheduler.complete(stream=stream)).headers
            assert headers["x-foretell-instance"] == "engine-0"
            assert headers["x-foretell-policy"] == "predicted_latency"
            assert headers["x-foretell-predicted-ttft-s"] == "0.2500"
            assert headers["x-foretell-predicted-e2e-s"] == "2.5000"
            assert headers["x-foretell-calibration"] == "412 steps"
            assert headers["x-request-id"]
            assert "x-foretell-emulated" not in headers


async def test_headers_tell_what_predictions_do_not_model(tmp_path: Path) -> None:
    predictor = Predictor(calibration_steps=3, approximations=["LoRA", "sliding-window attention"])
    async with (
        engines(answer) as (engine,),
        serving(predictor) as address,
        running(tmp_path, [engine], [address], policy="predicted_latency") as scheduler,
    ):
        headers = (await scheduler.complete()).headers
        told = "3 steps; not modelled: LoRA, sliding-window attention"
        assert headers["x-foretell-calibration"] == told


async def test_an_emulated_engine_says_so_to_the_client(tmp_path: Path) -> None:
    async with engines(answer) as (engine,), running(tmp_path, [engine]) as scheduler:
        engine.headers = {"x-foretell-emulated": "true", "set-cookie": "a=b", "server": "x"}
        response = await scheduler.complete()
        assert response.headers["x-foretell-emulated"] == "true"
        assert not {"set-cookie", "server"} & set(response.headers)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("code", "attempts"), [(400, 1), (422, 1), (404, 3), (429, 3)])
async def test_an_engines_refusal_is_the_answer(
    tmp_path: Path, code: int, attempts: int, stream: bool
) -> None:
    """At once if it is about the request, otherwise if all engines refuse it alike."""
    refusing = status(code, REFUSAL)
    async with engines(refusing, refusing) as both, running(tmp_path, both) as scheduler:
        for engine in both:
            engine.headers = {"retry-after": "7"}
        response = await scheduler.complete(stream=stream)
        assert (response.status_code, response.content) == (code, REFUSAL)
        assert response.headers["retry-after"] == "7"
        assert sum(len(engine.received) for engine in both) == attempts
        assert await scheduler.metric("foretell_retries_total") == (attempts if attempts > 1 else 0)
        assert await scheduler.metric("foretell_e2e_seconds_count") == 0
        await scheduler.until_metric("foretell_requests_total", 1, status=str(code))


async def test_the_sdk_understands_answers_streams_and_refusals(tmp_path: Path) -> None:
    async with engines(answer) as (engine,), running(tmp_path, [engine]) as scheduler:
        sdk = scheduler.sdk()
        whole = await sdk.completions.create(model=MODEL, prompt="x")
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 20
        stream = await sdk.completions.create(model=MODEL, prompt="x", stream=True)
        texts = [choice.text async for chunk in stream for choice in chunk.choices]
        assert texts == ["caf\u00e9", " au lait"]
        with pytest.raises(BadRequestError) as caught:
            await sdk.completions.create(model=MODEL, prompt="x", max_tokens=-1)
        assert caught.value.param == "max_tokens"
        engine.behaviour = status(400, REFUSAL)
        with pytest.raises(BadRequestError) as caught:
            await sdk.completions.create(model=MODEL, prompt="x", stream=True)
        assert caught.value.param == "top_p"
        await sdk.close()


@pytest.mark.parametrize(
    ("sent", "arrives"),
    [
        ((EVENTS[0],), EVENTS[0]),
        ((EVENTS[0], EVENTS[2][:30]), EVENTS[0]),  # within an event
        ((EVENTS[0], EVENTS[2][:-1]), EVENTS[0]),  # between an event's data and its end
    ],
)
async def test_a_failure_after_the_first_token_is_told_in_the_stream(
    tmp_path: Path, sent: tuple[bytes, ...], arrives: bytes
) -> None:
    async with (
        engines(break_after(*sent), answer) as (bad, good),
        running(tmp_path, [bad], health_interval_s=1000) as scheduler,
    ):
        response = await scheduler.complete(stream=True)
        assert response.status_code == 200
        assert response.content.startswith(arrives)
        rest = response.content[len(arrives) :].strip()
        assert rest.startswith(b"data: ")
        error = json.loads(rest.removeprefix(b"data: "))["error"]
        assert error["code"] == "engine_lost"
        assert set(error) == {"message", "type", "param", "code"}

        sdk = scheduler.sdk()
        texts = []
        with pytest.raises(APIError, match="the engine failed"):  # noqa: PT012 - in the midst
            async for chunk in await sdk.completions.create(model=MODEL, prompt="x", stream=True):
                texts += [choice.text for choice in chunk.choices]
        assert texts[0] == "caf\u00e9"
        await sdk.close()
        assert good.received == []
        assert await scheduler.metric("foretell_e2e_seconds_count") == 0
        await scheduler.until_metric("foretell_requests_total", 2, status="502")
        await scheduler.until_idle()


async def test_an_engines_own_error_in_mid_answer_passes_unchanged(tmp_path: Path) -> None:
    """The recorded answer of a vLLM whose engine core was killed while its HTTP server lived on."""
    told = Path(__file__).parents[1] / "data/vllm_answers/completion-engine-died.sse"
    log = tmp_path / "log"

    async def die(exchange: Exchange) -> None:
        await exchange.head(200, "text/event-stream")
        for line in told.read_bytes().splitlines(keepends=True):
            await exchange.chunk(line)
        await exchange.chunk(b"")

    async with (
        engines(die) as (engine,),
        running(tmp_path, [engine], request_log=str(log)) as scheduler,
    ):
        assert (await scheduler.complete(stream=True)).content == told.read_bytes()
        await until(lambda: bool(log.read_text()))
        line = json.loads(log.read_text())
        assert (line["status"], line["finished"]) == (200, False)
        assert await scheduler.metric("foretell_e2e_seconds_count") == 0
        assert await scheduler.metric("foretell_retries_total") == 0
        assert len(engine.received) == 1
        await scheduler.until_idle()


async def test_an_answer_that_cannot_be_held_is_refused_and_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foretell.answer.framing.LONGEST_BODY_BYTES", len(WHOLE) - 1)
    async with engines(answer) as (engine,), running(tmp_path, [engine]) as scheduler:
        response = await scheduler.complete()
        assert response.status_code == 502
        assert response.json()["error"]["code"] == "answer_too_long"
        assert len(engine.received) == 1
        assert (await scheduler.complete(stream=True)).content == STREAM
        await scheduler.until_metric("foretell_requests_total", 1, status="502")
        await scheduler.until_idle()


async def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    """An engine must not be able to have a prompt sent elsewhere."""
    async with engines(status(307, b""), answer) as (engine, other):
        engine.headers = {"location": f"{other.url}/v1/completions"}
        async with running(tmp_path, [engine]) as scheduler:
            assert (await scheduler.complete()).status_code == 503
            assert other.received == []


async def test_a_client_that_half_reads_does_not_stop_others(tmp_path: Path) -> None:
    async def firehose(exchange: Exchange) -> None:
        await exchange.head(200, "text/event-stream")
        for _ in range(500):
            await exchange.chunk(b"data: " + b"x" * 65_536 + b"\n\n")
        await exchange.chunk(b"")

    async with engines(firehose) as (engine,), running(tmp_path, [engine]) as scheduler:
        async with scheduler.client.stream(
            "POST", "/v1/completions", json={"model": MODEL, "prompt": "x", "stream": True}
        ) as slow:
            await anext(slow.aiter_raw())  # reads the first piece only
            engine.behaviour = answer
            assert (await scheduler.complete(stream=True)).content == STREAM
        await scheduler.until_idle()
