"""Requests as OpenAI clients send them to vLLM, and the errors that answer wrong ones."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from foretell.length.conversation import split_chat
from foretell.services.backend.emulator.snapshot import RequestTag
from foretell.services.backend.emulator.text import tokenize

_ERROR_TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    413: "RequestEntityTooLargeError",
    503: "ServiceUnavailableError",
}
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_DEFAULT_COMPLETION_TOKENS = 16  # vLLM's, for /v1/completions alone

# Fields that ask for something in the answer that only a real model could produce.
_UNSUPPORTED = (
    "continue_final_message",
    "echo",
    "functions",
    "include_stop_str_in_output",
    "logprobs",
    "prompt_embeds",
    "prompt_logprobs",
    "structured_outputs",
    "suffix",
    "use_beam_search",
)


class VllmError(Exception):
    """An error answer, with the types that vLLM gives."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param

    def body(self) -> dict[str, Any]:
        kind = _ERROR_TYPES.get(self.status, "InternalServerError")
        named = {"message": self.message, "type": kind, "param": self.param, "code": self.status}
        return {"error": named}

    def anthropic_body(self) -> dict[str, Any]:
        """In the shape of Anthropic's API."""
        kinds = {400: "invalid_request_error", 404: "not_found_error"}
        kind = kinds.get(self.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": self.message}}


class StreamOptions(BaseModel):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class GenerationRequest(BaseModel):
    """What completions and chat completions have in common."""

    model_config = ConfigDict(extra="allow")
    prompt_field: ClassVar[str] = "prompt"

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: int = Field(1, ge=1)
    stop: str | list[str] | None = None
    seed: int | None = Field(None, ge=-_INT64_MAX - 1, le=_INT64_MAX)
    temperature: float | None = Field(None, ge=0, le=2)
    max_tokens: int | None = Field(None, ge=1)
    min_tokens: int = Field(0, ge=0)
    ignore_eos: bool = False
    priority: int = Field(0, ge=-_INT32_MAX - 1, le=_INT32_MAX)
    return_token_ids: bool | None = False
    vllm_xargs: dict[str, Any] | None = None

    @property
    def stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def streaming(self) -> StreamOptions | None:
        """How the answer is streamed; None: it is not."""
        return (self.stream_options or StreamOptions()) if self.stream else None

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def output_begun(self, choice: int) -> int:
        """Output tokens that the client has from another engine; this one continues after them."""
        given = self.vllm_xargs or {}
        ids, lengths = given.get("foretell_output_ids"), given.get("foretell_output_lengths")
        if isinstance(lengths, list) and len(lengths) == self.n:
            length = lengths[choice]
            return max(0, length) if isinstance(length, int) else 0
        return len(ids) if isinstance(ids, list) and self.n == 1 else 0

    @abstractmethod
    def prompts(self) -> list[list[str]]:
        """The tokens of each prompt."""

    @abstractmethod
    def asked(self, number: int) -> str:
        """The text of the question in prompt `number`; "" if the prompt is token ids."""

    @abstractmethod
    def output_limit(self) -> int | None:
        """Output tokens the client allows; None: as many as the model's length leaves."""

    def tag(self) -> RequestTag:
        """What a Foretell scheduler added to it; an unreadable prediction counts as none."""
        xargs = self.vllm_xargs or {}
        try:
            predicted = float(xargs.get("foretell_predicted_tokens", 0.0))
        except (TypeError, ValueError):
            predicted = 0.0
        return RequestTag(str(xargs.get("foretell_id", "")), predicted)


class CompletionRequest(GenerationRequest):
    """POST /v1/completions."""

    prompt: (
        list[Annotated[int, Field(ge=0)]]
        | list[list[Annotated[int, Field(ge=0)]]]
        | str
        | list[str]
    )

    def prompts(self) -> list[list[str]]:
        """The tokens of each prompt; each token id counts as a word of its own."""
        if isinstance(self.prompt, str):
            return [tokenize(self.prompt)]
        if self.prompt and isinstance(self.prompt[0], int):
            return [list(map(str, self.prompt))]
        return [
            tokenize(item) if isinstance(item, str) else list(map(str, item))  # type: ignore[arg-type]
            for item in self.prompt
        ]

    def asked(self, number: int) -> str:
        prompt = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        text = prompt[number] if isinstance(prompt[0], str) else ""
        return text if isinstance(text, str) else ""

    def output_limit(self) -> int | None:
        return _DEFAULT_COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens


class ContentPart(BaseModel):
    type: str
    text: str = ""


class ChatMessage(BaseModel):
    role: str
    content: str | list[ContentPart] | None = None

    def text(self) -> str:
        """The message's text; raises `VllmError` for parts that are not text."""
        if isinstance(self.content, str) or self.content is None:
            return self.content or ""
        for part in self.content:
            if part.type != "text":
                raise VllmError(400, f"messages: {part.type!r} parts are not supported", "messages")
        return "\n".join(part.text for part in self.content)


class ConversationRequest(GenerationRequest):
    """What chats and Anthropic's messages have in common."""

    prompt_field: ClassVar[str] = "messages"

    messages: list[ChatMessage] = Field(min_length=1)

    def conversation(self) -> list[ChatMessage]:
        """All messages, in their order."""
        return self.messages

    def prompts(self) -> list[list[str]]:
        """One prompt, as a chat template would build it.

        Texts cannot contain the template's own tokens, because `tokenize` splits them.
        """
        tokens: list[str] = []
        for message in self.conversation():
            tokens += [f"<|{message.role}|>", *tokenize(message.text()), "<|end|>"]
        return [[*tokens, "<|assistant|>"]]

    def asked(self, number: int) -> str:
        return split_chat((each.role, each.text()) for each in self.conversation())[2]

    def output_limit(self) -> int | None:
        return self.max_tokens


class ChatRequest(ConversationRequest):
    """POST /v1/chat/completions."""

    max_completion_tokens: int | None = Field(None, ge=1)

    def output_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class CountTokensRequest(ConversationRequest):
    """POST /v1/messages/count_tokens, of Anthropic's API."""

    system: str | list[ContentPart] | None = None
    tool_choice: dict[str, Any] | None = None

    def conversation(self) -> list[ChatMessage]:
        """The system prompt, then all messages."""
        if (self.tool_choice or {}).get("type") in ("any", "tool"):
            raise VllmError(400, "tool_choice: an emulated engine calls no tools", "tool_choice")
        system = [ChatMessage(role="system", content=self.system)] if self.system else []
        return [*system, *self.messages]


class MessagesRequest(CountTokensRequest):
    """POST /v1/messages, of Anthropic's API."""

    max_tokens: int = Field(ge=1)
    stop_sequences: list[str] | None = None

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Where the answer ends."""
        return tuple(self.stop_sequences or ())

    @property
    def streaming(self) -> StreamOptions | None:
        """How the answer is streamed; streams always include token counts."""
        counts = StreamOptions(include_usage=True, continuous_usage_stats=True)
        return counts if self.stream else None


RequestT = TypeVar("RequestT", bound=GenerationRequest)


def parse(request_class: type[RequestT], body: bytes) -> RequestT:
    """Parse and check a request; raises `VllmError` that names the field at fault."""
    try:
        request = request_class.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        param = str(first["loc"][0]) if first["loc"] else None
        where = f"{param}: " if param else ""
        raise VllmError(400, f"{where}{first['msg']}", param) from error
    _check(request, request.model_extra or {})
    return request


def _check(request: GenerationRequest, extra: Mapping[str, Any]) -> None:
    """Check what types alone do not; raises `VllmError`."""
    guided = [name for name in extra if name.startswith("guided_")]  # names of older vLLM versions
    for name in (*_UNSUPPORTED, *guided):
        value = extra.get(name)
        if value is not None and value is not False and value != "":
            raise VllmError(400, f"{name} is not supported by an emulated engine", name)
    response_format = extra.get("response_format")
    if isinstance(response_format, dict) and response_format.get("type") != "text":
        raise VllmError(
            400, "response_format: an emulated engine writes text only", "response_format"
        )
    if extra.get("tool_choice") not in (None, "none", "auto"):
        raise VllmError(400, "tool_choice: an emulated engine calls no tools", "tool_choice")
    if any(not text for text in request.stop_strings):
        raise VllmError(400, "stop cannot contain an empty string.", "stop")
    if request.stream_options and not request.stream:
        raise VllmError(
            400, "Stream options can only be defined when `stream=True`.", "stream_options"
        )
    if request.greedy and request.n > 1:
        raise VllmError(400, f"n must be 1 when using greedy sampling, got {request.n}.", "n")
