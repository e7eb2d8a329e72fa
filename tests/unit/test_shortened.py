"""Long bodies as placement reads them."""

import asyncio
import json
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from foretell.openai.errors import ApiError
from foretell.openai.parsing import Spliced, for_engine, parse, values_of
from foretell.openai.shortened import MOST_TEXT, Cutter
from foretell.openai.surface import ENDPOINTS
from foretell.services.scheduler.lifecycle.bodies import shortened
from foretell.v1 import ext_proc_pb2 as pb
from foretell.wire.ext_proc import body_chunks

CHAT = ENDPOINTS["/v1/chat/completions"]
WINDOW = 32

texts = st.one_of(
    st.text(st.sampled_from('ab"\\\n\té\u20ac\U0001f600 ')),
    st.text(st.sampled_from('\\"')),
    st.integers(0, 400).map(lambda n: "QUJD" * n),
    st.integers(0, 400).map(lambda n: "\u6f22\U0001f600" * n),
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | texts,
    lambda inner: (
        st.lists(inner) | st.dictionaries(texts.filter(lambda t: len(json.dumps(t)) < 20), inner)
    ),
)


def cut(raw: bytes, *, text_bytes: int = 0) -> bytes:
    cutter = Cutter(raw, WINDOW)
    cutter._text_bytes = text_bytes
    while not cutter.go_on():
        pass
    return b"".join(cutter.kept)


def alike(whole: Any, short: Any) -> bool:
    """Whether `short` equals `whole`, except for parts of long texts."""
    if isinstance(whole, str) and len(whole.encode()) > WINDOW // 8:
        rest = iter(whole)
        return isinstance(short, str) and all(each in rest for each in short)
    if isinstance(whole, list):
        return len(whole) == len(short) and all(map(alike, whole, short))
    if isinstance(whole, dict):
        return list(whole) == list(short) and all(map(alike, whole.values(), short.values()))
    return bool(whole == short)


@given(values, st.booleans())
@example([None, None, None, "\U0001f600\\\u00e9\u00e9\u00e9\n\\\\"], True)
@example(["\U0001f600" * 40], True)
def test_what_is_left_is_json_of_the_same_shape(value: Any, ascii_only: bool) -> None:
    raw = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert alike(value, json.loads(cut(raw)))
    assert cut(raw, text_bytes=1 << 30).count(b" ") == raw.count(b" ")


@given(st.binary(max_size=300))
def test_what_is_no_json_does_not_become_any(raw: bytes) -> None:
    with pytest.raises((json.JSONDecodeError, UnicodeDecodeError)):
        json.loads(cut(b'{"a": nothing, "b": ' + raw))


async def test_a_picture_goes_and_the_text_after_it_stays() -> None:
    picture = "data:image/png;base64," + "QUJD" * 1_000_000
    parts = [{"type": "image_url", "image_url": {"url": picture}}, {"type": "text", "text": "why?"}]
    body = {"model": "m", "messages": [{"role": "user", "content": parts}], "max_tokens": 7}
    raw = orjson.dumps(body)
    short = await shortened(raw)
    assert len(short.text) < 200_000
    raw += b" \n" * 10
    request = parse(CHAT, raw, values_of(short))
    assert (request.text, request.max_tokens) == ("why?", 7)
    sent = for_engine(request, "r", 1.0)
    assert isinstance(sent, Spliced)
    kept, added = sent.parts
    assert isinstance(kept, memoryview)
    assert kept.obj is raw, "the long part is not copied"
    told = json.loads(b"".join(sent.parts))
    assert (told["messages"], told["vllm_xargs"]["foretell_id"]) == (body["messages"], "r")
    assert len(sent) == len(kept) + len(added)
    chunks = [pb.ProcessingResponse.FromString(each) for each in body_chunks(sent, ends=True)]
    streamed = [each.request_body.response.body_mutation.streamed_response for each in chunks]
    assert b"".join(each.body for each in streamed) == b"".join(sent.parts)
    assert [each.end_of_stream for each in streamed] == [False] * (len(chunks) - 1) + [True]


async def test_no_more_text_is_read_than_any_context_has() -> None:
    raw = orjson.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "a b " * (4 << 20)}]}
    )
    assert MOST_TEXT <= len((await shortened(raw)).text) < 2 * MOST_TEXT


async def test_others_get_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = 0

    async def pause(_: float) -> None:
        nonlocal turns
        turns += 1

    monkeypatch.setattr(asyncio, "sleep", pause)
    await shortened(orjson.dumps({"model": "m", "a": '"\\' * (5 << 20)}))
    assert turns >= 19


async def test_what_is_still_long_is_refused_before_it_is_read() -> None:
    raw = orjson.dumps({"model": "m", "messages": [], "more": ["x y" * 5000] * 2000})
    with pytest.raises(ApiError) as caught:
        await shortened(raw)
    assert caught.value.code == "request_too_large"
