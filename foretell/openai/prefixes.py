"""Hashes that name the beginning of a prompt, by which predictors follow prefix caches."""

import json
from dataclasses import dataclass, replace
from typing import Any

from foretell.length.prefix import (
    CHUNK_BYTES,
    CHUNK_TOKENS,
    prefix_of_text,
    prefix_of_tokens,
    whole_name,
)
from foretell.model import NO_TURN, Turn
from foretell.openai.parsing import ApiRequest
from foretell.openai.shortened import MOST_TEXT
from foretell.openai.surface import Message

_TEMPLATE_FIELDS = ("tools", "documents", "chat_template", "chat_template_kwargs")
"""Fields of a chat's body that templates write into the prompt, mostly before the messages."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """The fields `prefix`, `prefix_chunk_tokens` and `turn` of `RequestSpec`."""

    hashes: tuple[int, ...] = ()
    chunk_tokens: float = 0.0
    turn: Turn = NO_TURN


def prefix_of(request: ApiRequest, prompt_tokens: int) -> Prefix:
    """Hash the prompt of `request`, which has about `prompt_tokens`. Several prompts get no hashes.
    Requests share hashes only with the same endpoint, model and `cache_salt`, as vLLM shares KV
    blocks only then. Tokens are assumed to be spread evenly over the text."""
    body = request.body
    try:
        key = json.dumps([request.endpoint.path, request.model, body.get("cache_salt")]).encode()
        if request.messages and len(request.raw) > MOST_TEXT:
            return Prefix()  # images and the like: hashing would block other requests
        if request.messages:
            return _of_chat(body, request.messages, key, prompt_tokens)
    except RecursionError:  # a depth that the parser just managed may be too much here
        return Prefix()
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        text = prompt[:MOST_TEXT].encode(errors="surrogatepass")
        return _of_bytes(text, key, prompt_tokens)
    if isinstance(prompt, list) and isinstance(prompt[0], int):
        return Prefix(prefix_of_tokens(prompt, key), float(CHUNK_TOKENS))
    return Prefix()


def continued(prefix: Prefix, prompt_tokens: int, conversation_tokens: int) -> tuple[int, Prefix]:
    """The corrected tokens and prefix of a prompt of about `prompt_tokens`, if the conversation is
    known to have `conversation_tokens` up to the end of its latest answer."""
    tokens = conversation_tokens + max(1, round(prompt_tokens - prefix.turn.answered_tokens))
    turn = replace(prefix.turn, answered_tokens=float(conversation_tokens))
    chunk_tokens = max(1.0, prefix.chunk_tokens * tokens / prompt_tokens) if prefix.hashes else 0.0
    return tokens, Prefix(prefix.hashes, chunk_tokens, turn)


def _of_bytes(raw: bytes, key: bytes, prompt_tokens: int) -> Prefix:
    hashes = prefix_of_text(raw, key)
    if not hashes:
        return Prefix()
    return Prefix(hashes, max(1.0, prompt_tokens * CHUNK_BYTES / len(raw)))


def _of_chat(
    body: dict[str, Any], messages: list[Message], key: bytes, prompt_tokens: int
) -> Prefix:
    """The prefix of a chat, whose latest answer is assumed to answer all messages before it."""
    parts = [_json(body[name]) for name in _TEMPLATE_FIELDS if body.get(name)]
    ends = [len(parts)]
    for message in messages:
        parts += _told(message)
        ends.append(len(parts))
    pieces = [part.encode(errors="surrogatepass") for part in parts]
    raw = b"\n".join(pieces)

    def until(messages: int) -> int:
        """Bytes of the template fields and the first `messages`."""
        return sum(map(len, pieces[: ends[messages]])) + ends[messages] - 1

    prefix = _of_bytes(raw, key, prompt_tokens)
    turn = Turn(whole_name(raw, key, prefix.hashes))
    latest = max((i for i, m in enumerate(messages) if m["role"] == "assistant"), default=0)
    if latest:
        before = whole_name(raw[: until(latest)], key, prefix.hashes)
        answered = prompt_tokens * until(latest + 1) / len(raw)
        turn = Turn(turn.prompt, before, answered)
    return replace(prefix, turn=turn)


def _told(message: Message) -> list[str]:
    """What a chat template may put into the prompt of a message, roughly in its order."""
    rest = {name: value for name, value in message.items() if name not in ("role", "content")}
    content = message.get("content")
    parts = [message["role"], content if isinstance(content, str) else _json(content)]
    return [*parts, _json(rest)] if any(rest.values()) else parts


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
