"""Bytes in; a request, or an error that names the field, out; never anything else."""

import gc
import json
from typing import Any

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from foretell.openai.errors import ApiError
from foretell.openai.parsing import (
    MAX_SEQUENCES,
    for_engine,
    parse,
    values_of,
)
from foretell.openai.surface import ENDPOINTS, MOST_MESSAGES, Endpoint
from foretell.services.scheduler.lifecycle.bodies import shortened
from tests.unit.parsed import CHAT, COMPLETIONS, chat, completion

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=True)
    | st.text(st.characters()),  # lone surrogates too
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
KNOWN_FIELDS = (
    "model", "prompt", "messages", "input", "instructions", "system",
    "max_output_tokens", "stream", "n", "max_tokens", "max_completion_tokens",
    "priority", "vllm_xargs", "min_tokens", "ignore_eos", "stop", "stop_token_ids",
    "response_format", "structured_outputs", "guided_json", "tools", "tool_choice",
)  # fmt: skip


def refusal(endpoint: Endpoint, raw: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(endpoint, raw)
    assert caught.value.status == 400
    return caught.value


@given(
    endpoint=st.sampled_from(list(ENDPOINTS.values())),
    body=st.dictionaries(st.sampled_from(KNOWN_FIELDS), JSON) | JSON,
)
@example(
    endpoint=ENDPOINTS["/v1/messages/count_tokens"],  # which does not know `vllm_xargs`
    body={"model": "m", "messages": [{"role": "user", "content": "hello"}], "vllm_xargs": True},
)
def test_any_json_is_parsed_or_refused_in_our_words(endpoint: Endpoint, body: Any) -> None:
    try:
        request = parse(endpoint, json.dumps(body).encode())
    except ApiError as error:
        answer = error.response()
        event(f"{answer.status}: {json.loads(answer.body)['error']['param']}")
        return
    request.text.encode()  # valid UTF-8, which gRPC requires
    sent = json.loads(for_engine(request, "r", 1.0), parse_constant=pytest.fail)
    if not endpoint.generates:
        assert sent == body
        return
    assert sent.pop("vllm_xargs").items() >= {"foretell_id": "r"}.items()
    assert sent == {k: v for k, v in body.items() if k != "vllm_xargs"}


@given(endpoint=st.sampled_from(list(ENDPOINTS.values())), raw=st.binary(max_size=64))
def test_any_bytes_are_refused_in_our_words(endpoint: Endpoint, raw: bytes) -> None:
    refusal(endpoint, raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b'{"model": "m"} trailing',
        b"[]",
        b'"text"',
        b"null",
        b"\xff\xfe\xfa",
        b'{"model": "m", "prompt": "x", "temperature": NaN}',
        b'{"model": "m", "prompt": "x", "temperature": -Infinity}',
        b'{"model": "m", "prompt": "x", "temperature": 1e999}',
        b'{"model": "m", "prompt": "x", "n": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    ],
)
def test_what_is_no_json_object_is_refused(raw: bytes) -> None:
    error = refusal(COMPLETIONS, raw)
    assert error.code == "json_invalid"
    assert error.param is None


def test_a_body_too_deep_to_be_sent_on_is_refused() -> None:
    """The parser may accept a depth that the encoder, called deeper in the stack, does not."""
    nested: list[Any] = []
    for _ in range(5_000):
        nested = [nested]
    request = completion(vllm_xargs={"mine": 1})
    request.body["vllm_xargs"] = {"mine": nested}
    with pytest.raises(ApiError) as caught:
        for_engine(request, "r", 1.0)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"model": 7}, "model"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [1, -2]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [[1], []]}, "prompt"),
        ({"prompt": ["x"] * (MAX_SEQUENCES + 1)}, "prompt"),
        ({"prompt": ["x"] * 40, "n": 40}, "n"),
        ({"n": 0}, "n"),
        ({"n": MAX_SEQUENCES + 1}, "n"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 16.5}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": [16]}, "max_tokens"),
        ({"n": "0"}, "n"),
        ({"stream": "perhaps"}, "stream"),
        ({"stream": 2}, "stream"),
        ({"stream": []}, "stream"),
        ({"max_tokens": 2**31}, "max_tokens"),
        ({"max_tokens": 10**4000}, "max_tokens"),
        ({"priority": 2**31}, "priority"),
        ({"priority": "high"}, "priority"),
        ({"vllm_xargs": []}, "vllm_xargs"),
        ({"vllm_xargs": {"foretell_output_tokens": 0}}, "vllm_xargs.foretell_output_tokens"),
        ({"vllm_xargs": {"foretell_output_tokens": "9"}}, "vllm_xargs.foretell_output_tokens"),
        ({"vllm_xargs": {"foretell_output_tokens": 2**31}}, "vllm_xargs.foretell_output_tokens"),
    ],
)
def test_a_completion_error_names_the_field(fields: dict[str, Any], param: str) -> None:
    body = {"model": "m", "prompt": "hello", **fields}
    assert refusal(COMPLETIONS, json.dumps(body).encode()).param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "user", "content": "x"}] * (MOST_MESSAGES + 1)}, "messages"),
        ({"messages": ["hello"]}, "messages[0]"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": "x"}, {"role": "user", "content": 3}]},
            "messages[1].content",
        ),
    ],
)
def test_a_chat_error_names_the_field(fields: dict[str, Any], param: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
    assert refusal(CHAT, json.dumps(body).encode()).param == param


@pytest.mark.parametrize(
    ("fields", "read"),
    [
        ({"max_tokens": 0, "echo": True}, {"max_tokens": 1}),
        ({"max_tokens": "16"}, {"max_tokens": 16}),
        ({"max_tokens": 16.0}, {"max_tokens": 16}),
        ({"max_tokens": True}, {"max_tokens": 1}),
        ({"n": 2.0}, {"sequences": 2}),
        ({"stream": "Yes"}, {"stream": True}),
        ({"stream": 1}, {"stream": True}),
        ({"stream": 0.0}, {"stream": False}),
        ({"stream": "off"}, {"stream": False}),
        ({"prompt": ["", "x"]}, {"sequences": 2}),
        ({"prompt": None, "prompt_embeds": "AAAA"}, {"text": ""}),
    ],
)
def test_what_vllm_takes_is_taken(fields: dict[str, Any], read: dict[str, Any]) -> None:
    request = completion(**fields)
    assert {name: getattr(request, name) for name in read} == read
    sent = json.loads(for_engine(request, "r", 1.0))
    assert sent.items() >= fields.items()  # in the form that was sent


def test_empty_conversations_are_the_engines_to_judge() -> None:
    assert chat(messages=[]).messages == []
    assert chat(max_tokens=0).max_tokens == 1
    for said in ("", []):
        body = {"model": "m", "input": said}
        assert parse(ENDPOINTS["/v1/responses"], json.dumps(body).encode()).text == ""


def test_the_only_model_is_meant_where_none_is_named() -> None:
    for body in ({}, {"model": None}, {"model": ""}):
        raw = json.dumps({"prompt": "x", **body}).encode()
        assert parse(COMPLETIONS, raw, only=lambda: "m").model == "m"


def test_limits_as_the_endpoints_have_them() -> None:
    assert completion().max_tokens == 16
    assert completion(max_tokens=5, max_completion_tokens=9).max_tokens == 5
    assert chat().max_tokens == 0
    assert chat(max_tokens=5, max_completion_tokens=9).max_tokens == 9
    assert chat(max_tokens=5).max_tokens == 5


def test_prompts_of_every_shape_are_counted() -> None:
    ids = completion(prompt=[1, 2, 3])
    assert (ids.token_ids, ids.text, ids.characters, ids.sequences) == (3, "", 0, 1)
    several = completion(prompt=[[1], [1, 2]], n=3)
    assert (several.token_ids, several.sequences) == (2, 6)
    texts = completion(prompt=["a", "long"], n=2)
    assert (texts.text, texts.characters, texts.sequences) == ("long", 4, 4)


def test_chat_text_is_all_that_can_be_read() -> None:
    request = chat(
        messages=[
            {"role": "system", "content": "one"},
            {"role": "user", "content": [{"type": "text", "text": "two"}, {"type": "image_url"}]},
            {"role": "assistant", "content": None, "tool_calls": []},
        ]
    )
    assert request.text == "one\ntwo\n"
    assert len(request.messages) == 3


def test_lone_surrogates_reach_the_engine_as_they_came() -> None:
    raw = b'{"model": "m", "prompt": "a\\ud800b"}'
    request = parse(COMPLETIONS, raw)
    assert request.text == "a?b"
    assert b'"a\\ud800b"' in for_engine(request, "r", 1.0)


def test_an_error_that_quotes_a_lone_surrogate_can_be_sent() -> None:
    error = ApiError(404, "The model '\ud800' does not exist.", "model")
    assert json.loads(error.response().body)["error"]["message"] == error.message
    assert json.loads(error.sse_event()[len(b"data: ") :])["error"]["param"] == "model"


@pytest.mark.parametrize(
    "junk",
    [
        b",".join([b"[]"] * 200_000),
        b",".join([b"1"] * 3_000_000),
        b"{%b}" % b",".join(b'"%x" :0' % i for i in range(200_000)),
        b"9" * 30_000_000,
        b'"\\ud800",' + b",".join([b"1.5"] * 300_000),
        b'"\\ud800",' + b"9" * 4_000_000,
    ],
    ids=("arrays", "values", "keys", "digits", "values, slowly", "digits, slowly"),
)
async def test_a_body_of_countless_values_is_not_parsed(junk: bytes) -> None:
    """Parsing would take half a second, in which no other request is served."""
    raw = b'{"model": "m", "prompt": "x", "junk": [%b]}' % junk
    with pytest.raises(ApiError) as caught:
        parse(COMPLETIONS, raw, values_of(await shortened(raw)))
    assert caught.value.code == "request_too_large"
    assert gc.isenabled()


@pytest.mark.parametrize(
    "prompt",
    ["{[()]}, {a: b}\n" * 250_000, [100_000] * 1_000_000, ["{[()]}, \ud800"] * 1000],
    ids=("text", "token ids", "lone surrogates"),
)
async def test_what_a_context_holds_is_read(prompt: Any) -> None:
    raw = json.dumps({"model": "m", "prompt": prompt}).encode()
    request = parse(COMPLETIONS, raw, values_of(await shortened(raw)))
    assert request.body["prompt"] == prompt
    assert gc.isenabled()
