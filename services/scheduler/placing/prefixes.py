"""Names for the beginning of a prompt, by which predictors follow prefix caches."""

import json
from dataclasses import dataclass
from typing import Any

from foretell.length.prefix import CHUNK_BYTES, CHUNK_TOKENS, prefix_of_text, prefix_of_tokens
from services.scheduler.http.parsing import ParsedRequest
from services.scheduler.http.surface import Message

_TEMPLATE_FIELDS = ("tools", "documents", "chat_template", "chat_template_kwargs")
"""Fields of a chat's body that templates write into the prompt, mostly before the messages."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """The fields `prefix` and `prefix_chunk_tokens` of `RequestSpec`."""

    hashes: tuple[int, ...] = ()
    chunk_tokens: float = 0.0


def prefix_of(request: ParsedRequest, prompt_tokens: int) -> Prefix:
    """Name the prompt of `request`, which has about `prompt_tokens`; several prompts have no name.

    Equal for requests to one model that vLLM lets share blocks: with the same `cache_salt`. Text is
    taken to have equally many tokens everywhere.
    """
    body = request.body
    try:
        key = json.dumps([request.endpoint.path, request.model, body.get("cache_salt")]).encode()
        if request.messages:
            return _of_text(_chat(body, request.messages), key, prompt_tokens)
    except RecursionError:  # what the parser just managed may be too deep from here
        return Prefix()
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return _of_text(prompt, key, prompt_tokens)
    if isinstance(prompt, list) and isinstance(prompt[0], int):
        return Prefix(prefix_of_tokens(prompt, key), float(CHUNK_TOKENS))
    return Prefix()


def _of_text(text: str, key: bytes, prompt_tokens: int) -> Prefix:
    raw = text.encode(errors="surrogatepass")
    hashes = prefix_of_text(raw, key)
    if not hashes:
        return Prefix()
    return Prefix(hashes, max(1.0, prompt_tokens * CHUNK_BYTES / len(raw)))


def _chat(body: dict[str, Any], messages: list[Message]) -> str:
    """All that a chat template may put into the prompt, in about its order."""
    parts = [_json(body[name]) for name in _TEMPLATE_FIELDS if body.get(name)]
    for message in messages:
        rest = {name: value for name, value in message.items() if name not in ("role", "content")}
        content = message.get("content")
        parts.append(message["role"])
        parts.append(content if isinstance(content, str) else _json(content))
        if any(rest.values()):
            parts.append(_json(rest))
    return "\n".join(parts)


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
