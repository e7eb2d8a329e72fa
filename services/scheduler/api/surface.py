"""The endpoints that are placed on engines: one table of what each is and how its body is read.

What a request says is read for placement alone; the engine gets the body as it came.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from foretell.services.scheduler.api.errors import invalid

Body = dict[str, Any]
Message = dict[str, Any]
"""A message as chat completions have it: `role`, `content` and more."""
Prompts = list[str] | list[list[int]]

MOST_MESSAGES = 10_000
"""Messages of a conversation: to read more holds up everyone else for too long."""
COMPLETIONS_DEFAULT_MAX_TOKENS = 16
"""What OpenAI's API and vLLM generate for a completion that names no limit."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint of vLLM's HTTP surface."""

    path: str
    prompts: Callable[[Body], Prompts] | None = None
    """The prompts of a body, at least one; raises `ApiError`. None: `messages` says all, or it
    generates nothing."""
    messages: Callable[[Body], list[Message]] | None = None
    """The conversation in a body; raises `ApiError`. None: it has none."""
    limits: tuple[str, ...] = ()
    """Fields that bound the output tokens; the first that is given counts."""
    default_max_tokens: int = 0
    """The bound where none of them is given; 0: none."""
    is_form: bool = False
    """Its body is a form with a file, and its answer need not be JSON."""
    opening: tuple[bytes, ...] = ()
    """Events with which a stream begins before there is a token."""
    generates: bool = field(init=False)
    """It generates tokens. The others are placed by load, without a prediction."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "generates", bool(self.limits))


def chat_messages(body: Body) -> list[Message]:
    messages = body.get("messages")
    if messages is None:
        raise invalid("'messages' is required", "messages", "missing_required_parameter")
    return _checked(messages, "messages")


def anthropic_messages(body: Body) -> list[Message]:
    """The messages of Anthropic's API, of which the system's stands apart."""
    system = body.get("system")
    _check_content(system, "system")
    first = [{"role": "system", "content": system}] if system is not None else []
    return [*first, *chat_messages(body)]


def response_messages(body: Body) -> list[Message]:
    """The input of OpenAI's Responses API as messages; what is no message is passed over."""
    said, instructions = body.get("input"), body.get("instructions")
    first = [{"role": "system", "content": instructions}] if isinstance(instructions, str) else []
    if isinstance(said, str):
        return [*first, {"role": "user", "content": said}]
    if said is None:
        raise invalid("'input' is required", "input", "missing_required_parameter")
    if not isinstance(said, list):
        raise invalid("'input' must be a string or an array", "input", "invalid_type")
    items = [each for each in said if isinstance(each, dict) and isinstance(each.get("role"), str)]
    return [*first, *(_checked(items, "input") if items else [])]


def _checked(messages: object, param: str) -> list[Message]:
    if not isinstance(messages, list):
        raise invalid(f"'{param}' must be an array", param, "invalid_type")
    if len(messages) > MOST_MESSAGES:
        raise invalid(f"'{param}' must have at most {MOST_MESSAGES} items", param, "array_too_long")
    for i, message in enumerate(messages):
        where = f"{param}[{i}]"
        if not isinstance(message, dict):
            raise invalid(f"'{where}' must be an object", where, "invalid_type")
        if not isinstance(message.get("role"), str):
            raise invalid(f"'{where}.role' must be a string", f"{where}.role", "invalid_type")
        _check_content(message.get("content"), f"{where}.content")
    return messages


def _check_content(content: object, param: str) -> None:
    if content is not None and not isinstance(content, str | list):
        raise invalid(f"'{param}' must be a string or an array", param, "invalid_type")


def content_text(content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):  # an assistant message that only calls tools
        return ""
    texts = (part.get("text") for part in content if isinstance(part, dict))
    return "\n".join(text for text in texts if isinstance(text, str))


def completion_prompts(body: Body) -> Prompts:
    prompt = body.get("prompt")
    if prompt is None and body.get("prompt_embeds"):
        return [""]
    if prompt is None:
        raise invalid("'prompt' is required", "prompt", "missing_required_parameter")
    if (isinstance(prompt, str) and prompt) or _token_ids(prompt):
        prompt = [prompt]
    good = isinstance(prompt, list) and prompt
    if good and all(isinstance(item, str) for item in prompt):
        return list(prompt)
    if good and all(_token_ids(item) for item in prompt):
        return list(prompt)
    raise invalid(
        "'prompt' must be a non-empty string, an array of strings, an array of token ids, "
        "or an array of arrays of token ids",
        "prompt",
        "invalid_type",
    )


def _token_ids(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(type(item) is int and item >= 0 for item in value)
    )


_TABLE = (
    Endpoint(
        "/v1/completions",
        prompts=completion_prompts,
        limits=("max_tokens",),
        default_max_tokens=COMPLETIONS_DEFAULT_MAX_TOKENS,
    ),
    # vLLM: max_completion_tokens replaces the deprecated max_tokens where both are given.
    Endpoint(
        "/v1/chat/completions",
        messages=chat_messages,
        limits=("max_completion_tokens", "max_tokens"),
    ),
    Endpoint(
        "/v1/responses",
        messages=response_messages,
        limits=("max_output_tokens",),
        opening=(b"response.created", b"response.in_progress"),
    ),
    Endpoint("/v1/messages", messages=anthropic_messages, limits=("max_tokens",)),
    Endpoint("/v1/messages/count_tokens"),
    *(Endpoint(path) for path in ("/v1/embeddings", "/v2/embed", "/pooling", "/classify")),
    *(Endpoint(path) for path in ("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank")),
    *(Endpoint(path) for path in ("/tokenize", "/detokenize")),
    *(Endpoint(f"/v1/audio/{name}", is_form=True) for name in ("transcriptions", "translations")),
)

ENDPOINTS = {each.path: each for each in _TABLE}
