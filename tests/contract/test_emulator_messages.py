"""Anthropic's Messages API on an emulated engine, over a real socket."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from emulated_engine import MODEL, EmulatedEngine, running_engine

ASKED: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 7,
    "messages": [{"role": "user", "content": [{"type": "text", "text": "Tell me of the sea."}]}],
    "temperature": 0,
    "ignore_eos": True,
}


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[EmulatedEngine]:
    async with running_engine(tmp_path) as engine:
        yield engine


async def told(engine: EmulatedEngine, **fields: Any) -> dict[str, Any]:
    answer = await engine.http.post("/v1/messages", json=ASKED | fields)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_message_has_the_text_that_a_chat_has(engine: EmulatedEngine) -> None:
    message = await told(engine, tool_choice={"type": "auto"}, tools=[])
    chat = await engine.http.post("/v1/chat/completions", json=ASKED)
    assert message["content"] == [
        {"type": "text", "text": chat.json()["choices"][0]["message"]["content"]}
    ]
    assert (message["type"], message["role"], message["stop_reason"]) == (
        *("message", "assistant", "max_tokens"),
    )
    assert message["usage"] == {"input_tokens": 9, "output_tokens": 7}
    counted = await engine.http.post("/v1/messages/count_tokens", json=ASKED)
    assert counted.json() == {"input_tokens": 9}


async def test_a_stream_says_what_the_message_says(engine: EmulatedEngine) -> None:
    whole = await told(engine)
    answer = await engine.http.post("/v1/messages", json=ASKED | {"stream": True})
    parts = [part.split("\n") for part in answer.text.split("\n\n")[:-1]]
    found = [json.loads(data.removeprefix("data: ")) for _, data in parts]
    assert [f"event: {each['type']}" for each in found] == [name for name, _ in parts]
    assert [each["type"] for each in found] == [
        *("message_start", "content_block_start", *["content_block_delta"] * 7),
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    text = "".join(each["delta"]["text"] for each in found[2:9])
    assert text == whole["content"][0]["text"]
    assert found[0]["message"]["usage"] == {"input_tokens": 9, "output_tokens": 0}
    assert found[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert found[-2]["usage"] == whole["usage"]


async def test_a_stop_sequence_ends_the_text(engine: EmulatedEngine) -> None:
    stop = (await told(engine))["content"][0]["text"].split()[2]
    message = await told(engine, stop_sequences=[stop])
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", stop)
    assert stop not in message["content"][0]["text"]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"max_tokens": None}, 400),
        ({"messages": []}, 400),
        ({"tool_choice": {"type": "any"}}, 400),
        ({"model": "another"}, 404),
    ],
)
async def test_errors_have_the_shape_of_that_api(
    engine: EmulatedEngine, fields: dict[str, Any], status: int
) -> None:
    answer = await engine.http.post("/v1/messages", json=ASKED | fields)
    assert answer.status_code == status
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["message"]
