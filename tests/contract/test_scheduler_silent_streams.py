"""An engine that falls silent in mid-stream while its health probes succeed."""

import json
import re
from pathlib import Path

import pytest
from engines import MODEL, Behaviour, Exchange, engines, hang
from schedulers import running

from foretell.placement import silence

RECORDED = Path(__file__).parents[1] / "data" / "vllm_answers" / "chat-token-ids.sse"
EVENTS = [event + b"\n\n" for event in RECORDED.read_bytes().split(b"\n\n") if event]
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "stream": True}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "LEAST_S", 0.2)
    monkeypatch.setattr(silence, "STREAM_S", 0.5)


def streaming(events: list[bytes], *, then_hang: bool = False) -> Behaviour:
    async def behaviour(exchange: Exchange) -> None:
        await exchange.head(200, "text/event-stream")
        for event in events:
            await exchange.chunk(event)
        if then_hang:
            await hang(exchange)
        await exchange.chunk(b"")

    return behaviour


def said(stream: bytes) -> str:
    events = [json.loads(text) for text in re.findall(rb"^data: (\{.*)$", stream, re.MULTILINE)]
    assert not any("error" in event for event in events)
    assert len({event["id"] for event in events}) == 1
    return "".join(e["choices"][0]["delta"].get("content") or "" for e in events if e["choices"])


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("events", [2, 4])
async def test_another_engine_goes_on(tmp_path: Path, events: int) -> None:
    hanging, good = streaming(EVENTS[:events], then_hang=True), streaming(EVENTS)
    async with (
        engines(hanging, good) as both,
        running(tmp_path, both, request_timeout_s=600.0) as scheduler,
    ):
        response = await scheduler.client.post("/v1/chat/completions", json=CHAT)
        assert said(response.content) == said(b"".join(EVENTS))
        assert response.content.endswith(b"data: [DONE]\n\n")
        assert b'"token_ids":[' not in response.content
        assert response.headers["x-foretell-instance"] == "engine-0"
        assert await scheduler.metric("foretell_continuations_total", reason="silent") == 1
        await scheduler.until_idle()
