"""The endpoints whose requests are placed on engines: one table says how each body is read.

Fields are read for placement only; the engine gets the client's body and checks the rest.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, Field, InstanceOf, TypeAdapter

from foretell.length.prefix import CHUNK_TOKENS, MOST_CHUNKS
from foretell.openai.errors import ApiError, invalid

Body = dict[str, Any]
Message = dict[str, Any]
"""A message as chat completions have it: `role`, `content` and more."""
Prompts = list[str] | list[list[int]]

MAX_SEQUENCES = 1024
MOST_MESSAGES = 10_000
"""The most messages of a conversation: reading more would block other requests for too long."""
_LOOKED_AT = MOST_CHUNKS * CHUNK_TOKENS
"""The first token ids of a prompt, which are checked."""
COMPLETIONS_DEFAULT_MAX_TOKENS = 16
"""What OpenAI's API and vLLM generate for a completion that names no limit."""

# `InstanceOf`, because texts may have lone surrogates, which are legal JSON: they are not checked.
_Content = InstanceOf[str] | InstanceOf[list[Any]] | None
_CONTENTS = (str, list, type(None))
_Limit = Annotated[int, Field(ge=0, le=2**31 - 1)] | None


class _Xargs(BaseModel):
    foretell_output_tokens: Annotated[int, Field(strict=True, ge=1, lt=2**31)] = 1


class Fields(BaseModel):
    """What is read of any body. Numbers and truth values may have all forms that pydantic takes, as
    vLLM reads them."""

    model: Any = None
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = None


class FormFields(Fields):
    """A file, and whether its answer shall be a stream."""

    file: Any = Field(None, json_schema_extra={"type": "string", "format": "binary"})
    stream: bool | None = None


class Generating(Fields):
    """What is read where tokens are generated."""

    stream: bool | None = None
    n: Annotated[int, Field(ge=1, le=MAX_SEQUENCES)] | None = None
    vllm_xargs: _Xargs | None = None


class _Limited(Generating):
    max_tokens: _Limit = None

    @property
    def limit(self) -> int | None:
        """The most output tokens of an answer; None: its client names no limit."""
        return self.max_tokens


class CompletionFields(_Limited):
    prompt: Any = None


class ChatFields(_Limited):
    messages: InstanceOf[list[Any]]
    max_completion_tokens: _Limit = None

    @property
    def limit(self) -> int | None:
        # As in vLLM, it replaces the deprecated `max_tokens` if both are given.
        given = self.max_completion_tokens
        return self.max_tokens if given is None else given


class AnthropicFields(_Limited):
    messages: InstanceOf[list[Any]]
    system: _Content = None


class ResponseFields(Generating):
    input: InstanceOf[str] | InstanceOf[list[Any]]
    max_output_tokens: _Limit = None

    @property
    def limit(self) -> int | None:
        return self.max_output_tokens


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint of vLLM's HTTP surface."""

    path: str
    fields: type[Fields] = Fields
    prompts: Callable[[Body], Prompts] | None = None
    """The prompts of a body, at least one; raises `ApiError`. None: the prompt is in `messages`, or
    nothing is generated."""
    messages: Callable[[Body], list[Message]] | None = None
    """The conversation in a validated body; raises `ApiError`. None: the endpoint has none."""
    default_max_tokens: int = 0
    """The limit of output tokens if the client names none; 0: no limit."""
    opening: tuple[bytes, ...] = ()
    """Events that begin a stream before its first token."""
    is_form: bool = field(init=False)
    """Whether its body is a form with a file. The answer need not be JSON then."""
    generates: bool = field(init=False)
    """Whether it generates tokens. If not, requests are placed by load, without a prediction."""
    read: Callable[[Body], Any] = field(init=False)
    """The `fields` of a body; raises `pydantic.ValidationError`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_form", issubclass(self.fields, FormFields))
        object.__setattr__(self, "generates", issubclass(self.fields, Generating))
        object.__setattr__(self, "read", TypeAdapter(self.fields).validator.validate_python)


def chat_messages(body: Body) -> list[Message]:
    return _checked(body["messages"], "messages")


def anthropic_messages(body: Body) -> list[Message]:
    """The messages in a body of Anthropic's API, which has the system prompt in its own field."""
    system = body.get("system")
    first = [{"role": "system", "content": system}] if system is not None else []
    return [*first, *chat_messages(body)]


def response_messages(body: Body) -> list[Message]:
    """The input of OpenAI's Responses API as messages; items that are no messages are skipped."""
    said, instructions = body["input"], body.get("instructions")
    first = [{"role": "system", "content": instructions}] if isinstance(instructions, str) else []
    if isinstance(said, str):
        return [*first, {"role": "user", "content": said}]
    items = [each for each in said if isinstance(each, dict) and isinstance(each.get("role"), str)]
    return [*first, *_checked(items, "input")]


def _checked(messages: list[Message], param: str) -> list[Message]:
    if len(messages) > MOST_MESSAGES:
        raise invalid(f"'{param}' must have at most {MOST_MESSAGES} items", param, "array_too_long")
    for i, each in enumerate(messages):  # parsed JSON has these types, no subclasses
        where = f"{param}[{i}]"
        if type(each) is not dict:
            raise invalid(f"'{where}' must be an object", where, "invalid_type")
        if type(each.get("role")) is not str:
            raise invalid(f"'{where}.role' must be a string", f"{where}.role", "invalid_type")
        if type(each.get("content")) not in _CONTENTS:
            text = f"'{where}.content' must be a string or an array"
            raise invalid(text, f"{where}.content", "invalid_type")
    return messages


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
        return [prompt]
    good = isinstance(prompt, list) and prompt
    if good and len(prompt) > MAX_SEQUENCES:
        raise too_many_sequences("prompt")
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


def too_many_sequences(param: str) -> ApiError:
    text = f"prompts times n must not exceed {MAX_SEQUENCES}"
    return invalid(text, param, "value_too_large")


def _token_ids(value: object) -> bool:
    """Whether `value` is a list of token ids, as far as placement reads it."""
    head = value[:_LOOKED_AT] if isinstance(value, list) else []
    return set(map(type, head)) == {int} and min(head) >= 0


_TABLE = (
    Endpoint(
        "/v1/completions",
        CompletionFields,
        prompts=completion_prompts,
        default_max_tokens=COMPLETIONS_DEFAULT_MAX_TOKENS,
    ),
    Endpoint("/v1/chat/completions", ChatFields, messages=chat_messages),
    Endpoint(
        "/v1/responses",
        ResponseFields,
        messages=response_messages,
        opening=(b"response.created", b"response.in_progress"),
    ),
    Endpoint("/v1/messages", AnthropicFields, messages=anthropic_messages),
    Endpoint("/v1/messages/count_tokens"),
    *(Endpoint(path) for path in ("/v1/embeddings", "/v2/embed", "/pooling", "/classify")),
    *(Endpoint(path) for path in ("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank")),
    *(Endpoint(path) for path in ("/tokenize", "/detokenize")),
    *(Endpoint(f"/v1/audio/{name}", FormFields) for name in ("transcriptions", "translations")),
)

ENDPOINTS = {each.path: each for each in _TABLE}
