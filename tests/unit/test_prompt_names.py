"""Equal beginnings of prompts, and only these, have equal names."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.length.prefix import CHUNK_BYTES, CHUNK_TOKENS, MOST_CHUNKS
from foretell.openai.parsing import parse
from foretell.openai.prefixes import Prefix, continued, prefix_of
from foretell.openai.surface import ENDPOINTS, Endpoint

COMPLETIONS, CHAT = ENDPOINTS["/v1/completions"], ENDPOINTS["/v1/chat/completions"]

LONG = "All work and no play makes Jack a dull boy. " * 100
TURNS = [
    {"role": "system", "content": LONG},
    {"role": "user", "content": "Who is Jack?" * 100},
    {"role": "assistant", "content": "A boy." * 100},
    {"role": "user", "content": "And what does he do?" * 100},
]


def of(endpoint: Endpoint, prompt_tokens: int = 1000, **body: Any) -> Prefix:
    raw = json.dumps({"model": "m", **body}).encode()
    return prefix_of(parse(endpoint, raw), prompt_tokens)


def chat(messages: list[dict[str, Any]], **body: Any) -> Prefix:
    return of(CHAT, messages=messages, **body)


def common(one: Prefix, other: Prefix) -> int:
    pairs = zip(one.hashes, other.hashes, strict=False)
    count = 0
    for a, b in pairs:
        if a != b:
            break
        count += 1
    return count


def test_a_later_turn_begins_with_all_of_an_earlier_one() -> None:
    earlier, later = chat(TURNS[:2]), chat(TURNS)
    assert len(earlier.hashes) >= len(LONG) // CHUNK_BYTES
    assert common(earlier, later) == len(earlier.hashes) < len(later.hashes)


@pytest.mark.parametrize("size", [1, 100])
def test_a_later_turn_names_the_prompt_before_and_how_far_its_answer_goes(size: int) -> None:
    turns = [{**turn, "content": turn["content"][: 40 * size]} for turn in TURNS]
    earlier, later = chat(turns[:2]).turn, chat(turns).turn
    assert earlier.prompt
    assert not earlier.before
    assert later.before == earlier.prompt != later.prompt
    told = [len(f"{turn['role']}\n{turn['content']}\n") for turn in turns]
    assert later.answered_tokens == pytest.approx(1000 * sum(told[:3]) / sum(told), abs=3)
    assert chat([*turns[:3], {"role": "user", "content": "?"}]).turn.before == earlier.prompt
    assert chat(turns, cache_salt="tenant").turn.before != earlier.prompt
    assert chat(turns[2:]).turn.before == 0


def test_a_turn_is_as_long_as_was_spoken_and_what_is_new() -> None:
    later = chat(TURNS)
    new = 1000 - later.turn.answered_tokens
    tokens, known = continued(later, 1000, 2000)
    assert tokens == pytest.approx(2000 + new, abs=1)
    assert (known.hashes, known.turn.before) == (later.hashes, later.turn.before)
    assert known.turn.answered_tokens == 2000.0
    assert known.chunk_tokens == pytest.approx(later.chunk_tokens * tokens / 1000)
    short = [{"role": role, "content": "?"} for role in ("user", "assistant", "user")]
    assert continued(chat(short), 20, 100)[1].chunk_tokens == 0.0


def test_what_differs_in_the_middle_is_equal_before() -> None:
    other = [TURNS[0], {"role": "user", "content": "Who is Jill?" * 100}]
    assert common(chat(TURNS), chat(other)) == (len("system\n") + len(LONG)) // CHUNK_BYTES


@pytest.mark.parametrize(
    "body",
    [
        {"model": "another"},
        {"cache_salt": "tenant"},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"chat_template_kwargs": {"thinking": True}},
    ],
)
def test_what_engines_tell_apart_has_nothing_in_common(body: dict[str, Any]) -> None:
    assert common(chat(TURNS), chat(TURNS, **body)) == 0


def test_roles_images_and_calls_are_told_apart() -> None:
    def image(url: str) -> list[dict[str, Any]]:
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": LONG}]
        return [{"role": "user", "content": content}]

    assert common(chat(image("a")), chat(image("b"))) == 0
    assert common(chat([{**TURNS[0], "role": "user"}]), chat(TURNS[:1])) == 0
    call = [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}, TURNS[0]]
    other = [{"role": "assistant", "content": None, "tool_calls": [{"id": "2"}]}, TURNS[0]]
    assert common(chat(call), chat(other)) == 0


def test_tokens_of_text_are_estimated_and_of_token_ids_known() -> None:
    text = of(COMPLETIONS, 2000, prompt="x" * (10 * CHUNK_BYTES))
    assert (len(text.hashes), text.chunk_tokens) == (10, 200.0)
    assert of(COMPLETIONS, 2000, prompt=["x" * (10 * CHUNK_BYTES)]) == text
    ids = list(range(3 * CHUNK_TOKENS + 5))
    tokens = of(COMPLETIONS, prompt=ids)
    assert (len(tokens.hashes), tokens.chunk_tokens) == (3, CHUNK_TOKENS)
    assert of(COMPLETIONS, prompt=[ids]) == tokens


def test_short_and_several_prompts_have_none_and_long_ones_not_too_many() -> None:
    assert of(COMPLETIONS, prompt="hello") == Prefix()
    assert of(COMPLETIONS, prompt=[LONG, LONG]) == Prefix()
    assert of(COMPLETIONS, prompt=[[1] * 500, [1] * 500]) == Prefix()
    long = of(COMPLETIONS, 10_000_000, prompt="x" * (CHUNK_BYTES * (MOST_CHUNKS + 5)))
    assert len(long.hashes) == MOST_CHUNKS


def test_a_body_nested_too_deeply_has_none() -> None:
    deep: Any = "x"
    for _ in range(300):
        deep = [deep]
    request = parse(CHAT, json.dumps({"model": "m", "messages": TURNS}).encode())
    for _ in range(100_000):
        deep = [deep]
    request.body["tools"] = deep
    assert prefix_of(request, 100) == Prefix()


@given(st.text(st.characters(), min_size=1), st.text(st.characters()))
def test_any_text_has_a_name(beginning: str, end: str) -> None:
    """Lone surrogates are legal JSON."""
    beginning *= CHUNK_BYTES
    one = chat([{"role": "user", "content": beginning}])
    other = chat([{"role": "user", "content": beginning + end}])
    assert common(one, other) >= len(one.hashes) - 1
