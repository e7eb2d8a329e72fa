"""The OpenAI surface of the emulated engine, over a real socket."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from emulated_engine import MODEL, EmulatedEngine, events, running_engine
from prometheus_client.parser import text_string_to_metric_families

CHAT = [{"role": "user", "content": "Tell me of the sea."}]


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[EmulatedEngine]:
    async with running_engine(tmp_path) as engine:
        yield engine


async def complete(engine: EmulatedEngine, **fields: Any) -> Any:
    """One greedy completion, as JSON."""
    body = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 12, "ignore_eos": True}
    answer = await engine.http.post("/v1/completions", json={**body, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_it_serves_one_labelled_model(engine: EmulatedEngine) -> None:
    assert (await engine.http.get("/health")).status_code == 200
    assert (await engine.http.get("/version")).json() == {"version": "emulated"}
    (card,) = (await engine.openai.models.list()).data
    assert (card.id, card.owned_by) == (MODEL, "foretell-emulated")
    for path in ("/health", "/v1/models", "/nowhere"):
        assert (await engine.http.get(path)).headers["x-foretell-emulated"] == "true"


async def test_chat_completion(engine: EmulatedEngine) -> None:
    answer = await engine.openai.chat.completions.create(
        model=MODEL, messages=CHAT, max_completion_tokens=5, extra_body={"ignore_eos": True}
    )
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert len(choice.message.content.split()) == 5
    assert choice.finish_reason == "length"
    # <|user|> Tell me of the sea . <|end|> <|assistant|>
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (9, 5)
    assert answer.usage.total_tokens == 14


async def test_chat_stream_says_what_the_whole_answer_says(engine: EmulatedEngine) -> None:
    fields: dict[str, Any] = {
        "model": MODEL,
        "messages": CHAT,
        "max_tokens": 7,
        "extra_body": {"ignore_eos": True},
    }
    whole = await engine.openai.chat.completions.create(**fields)
    stream = await engine.openai.chat.completions.create(**fields, stream=True)
    chunks = [chunk async for chunk in stream]
    first, *rest = [chunk.choices[0] for chunk in chunks]
    assert (first.delta.role, first.delta.content) == ("assistant", "")
    assert "".join(c.delta.content for c in rest) == whole.choices[0].message.content
    assert [c.finish_reason for c in rest] == [None] * 6 + ["length"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].id.startswith("chatcmpl-")


async def test_completion_stream_has_one_chunk_per_token_and_usage_at_the_end(
    engine: EmulatedEngine,
) -> None:
    fields = {"prompt": "a b c", "max_tokens": 6, "ignore_eos": True, "stream": True}
    answer = await engine.http.post(
        "/v1/completions",
        json={**fields, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        headers={"X-Request-Id": "R"},
    )
    assert answer.headers["content-type"].startswith("text/event-stream")
    *tokens, last = events(answer.text)
    assert [t["usage"]["completion_tokens"] for t in tokens] == [1, 2, 3, 4, 5, 6]
    assert {t["id"] for t in tokens} == {"cmpl-R"}
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}
    plain = await engine.http.post("/v1/completions", json=fields)
    assert all("usage" not in event for event in events(plain.text))


async def test_response_ids_follow_the_request_id(engine: EmulatedEngine) -> None:
    headers = {"X-Request-Id": "R-1"}
    raw = await engine.http.post(
        "/v1/chat/completions", json={"messages": CHAT, "max_tokens": 1}, headers=headers
    )
    assert raw.json()["id"] == "chatcmpl-R-1"
    raw = await engine.http.post(
        "/v1/completions", json={"prompt": "x", "max_tokens": 1}, headers=headers
    )
    assert raw.json()["id"] == "cmpl-R-1"


async def test_stop_strings_end_the_text_before_themselves(engine: EmulatedEngine) -> None:
    text = (await complete(engine))["choices"][0]["text"]
    words = text.split()
    # The earlier of two stop strings ends the text, and it spans a word boundary.
    stop = f"{words[4]} {words[5]}"
    for stream in (False, True):
        fields = {
            "prompt": "Once upon a time",
            "temperature": 0,
            "max_tokens": 12,
            "ignore_eos": True,
            "stop": [words[9], stop],
            "stream": stream,
        }
        raw = await engine.http.post("/v1/completions", json=fields)
        pieces = events(raw.text) if stream else [raw.json()]
        assert "".join(p["choices"][0]["text"] for p in pieces) == text[: text.index(stop)]
        assert pieces[-1]["choices"][0]["finish_reason"] == "stop"
        assert pieces[-1]["choices"][0]["stop_reason"] == stop
    late = await complete(engine, stop=words[0], min_tokens=12)
    assert late["choices"][0]["finish_reason"] == "length"


async def test_choices_differ_and_are_indexed_by_prompt(engine: EmulatedEngine) -> None:
    answer = await engine.openai.completions.create(
        model=MODEL, prompt=["one", "two"], n=2, max_tokens=8, extra_body={"ignore_eos": True}
    )
    assert sorted(choice.index for choice in answer.choices) == [0, 1, 2, 3]
    assert len({choice.text for choice in answer.choices}) == 4
    assert answer.usage.completion_tokens == 32
    stream = await engine.openai.chat.completions.create(
        model=MODEL, messages=CHAT, n=2, max_tokens=3, stream=True
    )
    ended = {c.choices[0].index async for c in stream if c.choices[0].finish_reason}
    assert ended == {0, 1}


@pytest.mark.parametrize("prompt", ["a b", ["a b"], [5, 6], [[5, 6]]])
async def test_prompt_forms(engine: EmulatedEngine, prompt: Any) -> None:
    answer = await complete(engine, prompt=prompt, max_tokens=2)
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}


async def test_end_of_sequence_is_decided_by_the_prompt(engine: EmulatedEngine) -> None:
    ended = await complete(engine, ignore_eos=False, max_tokens=4000)
    length = ended["usage"]["completion_tokens"]
    assert ended["choices"][0]["finish_reason"] == "stop"
    # The end-of-sequence token is counted and has no text.
    assert len(ended["choices"][0]["text"].split()) == length - 1
    cut = await complete(engine, ignore_eos=False, max_tokens=length - 1)
    assert cut["choices"][0]["finish_reason"] == "length"
    assert cut["choices"][0]["text"] == ended["choices"][0]["text"]
    longer = await complete(engine, ignore_eos=False, min_tokens=length, max_tokens=4000)
    assert longer["usage"]["completion_tokens"] == length + 1


async def test_an_answer_begun_elsewhere_is_continued(tmp_path: Path) -> None:
    async with (
        running_engine(tmp_path, name="one") as one,
        running_engine(tmp_path, name="two") as two,
    ):
        whole = await complete(one, ignore_eos=False, max_tokens=4000)
        assert (
            whole["choices"] == (await complete(two, ignore_eos=False, max_tokens=4000))["choices"]
        )
        asked = {
            "prompt": "Once upon a time",
            "max_tokens": 4000,
            "stream": True,
            "return_token_ids": True,
        }
        told = events((await one.http.post("/v1/completions", json=asked)).text)
        ids = [each for event in told for each in event["choices"][0]["token_ids"]]
        begun = {"vllm_xargs": {"foretell_output_ids": ids[: len(ids) // 2]}}
        rest = await complete(two, ignore_eos=False, max_tokens=4000, **begun)
        assert rest["choices"] == whole["choices"]
        assert rest["usage"] == whole["usage"]


async def test_seed_joins_in_unless_greedy(engine: EmulatedEngine) -> None:
    async def text(**fields: Any) -> str:
        return (await complete(engine, **fields))["choices"][0]["text"]

    assert await text(seed=1) == await text(seed=2) == await text(temperature=1)
    assert await text(seed=1, temperature=1) == await text(seed=1, temperature=1)
    assert await text(seed=1, temperature=1) != await text(seed=2, temperature=1)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 4097}, "max_tokens"),
        ({"prompt": "x " * 4096}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"n": 0}, "n"),
        ({"n": 2, "temperature": 0}, "n"),
        ({"temperature": 3}, "temperature"),
        ({"min_tokens": 17}, "min_tokens"),
        ({"stop": ""}, "stop"),
        ({"logprobs": 0}, "logprobs"),
        ({"echo": True}, "echo"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
async def test_errors_name_the_field(
    engine: EmulatedEngine, fields: dict[str, Any], param: str
) -> None:
    answer = await engine.http.post("/v1/completions", json={"prompt": "x", **fields})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"], error["type"]) == (param, 400, "BadRequestError")
    assert answer.headers["x-foretell-emulated"] == "true"


async def test_max_tokens_is_cut_to_the_models_length(engine: EmulatedEngine) -> None:
    answer = await complete(engine, prompt="x " * 4090, max_tokens=50)
    assert answer["usage"]["total_tokens"] == 4096
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_other_errors_have_their_status(engine: EmulatedEngine) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        await engine.openai.completions.create(model="gpt-5", prompt="x")
    assert unknown.value.body["param"] == "model"  # type: ignore[index]
    for body in (b"{", b"[]", b'{"prompt": "\\ud800"}', b"\xff"):
        raw = await engine.http.post("/v1/completions", content=body)
        assert (raw.status_code, raw.json()["error"]["code"]) == (400, 400)
    assert (await engine.http.get("/v1/completions")).status_code == 405
    images = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    raw = await engine.http.post("/v1/chat/completions", json={"messages": images})
    assert (raw.status_code, raw.json()["error"]["param"]) == (400, "messages")


async def test_long_bodies_are_refused_while_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b" " * 1024

    monkeypatch.setattr("foretell.services.backend.emulator.__main__.MAX_BODY_BYTES", 2048)
    async with running_engine(tmp_path) as engine:
        announced = await engine.http.post("/v1/completions", content=b" " * 4096)
        chunked = await engine.http.post("/v1/completions", content=endless())
        for answer in (announced, chunked):
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, 413)


async def test_what_it_cannot_do_it_refuses_clearly(engine: EmulatedEngine) -> None:
    for field, value in {"guided_choice": ["a", "b"], "guided_json": {}, "logprobs": 1}.items():
        answer = await engine.http.post("/v1/completions", json={"prompt": "x", field: value})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == field
    answer = await engine.http.post("/v1/embeddings", json={"input": "x"})
    assert answer.status_code == 404
    assert "does not offer /v1/embeddings" in answer.json()["error"]["message"]


async def test_it_has_the_metrics_of_vllm_that_dashboards_show(engine: EmulatedEngine) -> None:
    await complete(engine)
    text = (await engine.http.get("/metrics")).text
    samples = {
        (sample.name, sample.labels.get("finished_reason", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "le" not in sample.labels
    }
    assert samples["vllm:generation_tokens_total", ""] == 12
    assert samples["vllm:request_success_total", "length"] == 1
    assert samples["vllm:num_requests_running", ""] == 0
    for name in ("queue", "prefill", "decode"):
        assert samples[f"vllm:request_{name}_time_seconds_count", ""] == 1
    total = samples["vllm:e2e_request_latency_seconds_sum", ""]
    parts = (
        samples[f"vllm:request_{n}_time_seconds_sum", ""] for n in ("queue", "prefill", "decode")
    )
    assert sum(parts) == pytest.approx(total)
