"""Anthropic's Messages API as vLLM serves it: `/v1/messages` and `/v1/messages/count_tokens`."""

import json
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from pydantic import Field

from foretell.length.conversation import split_chat
from foretell.services.backend.emulator.answer import Answer
from foretell.services.backend.emulator.formats import CompletionFormat, Usage
from foretell.services.backend.emulator.protocol import (
    ApiError,
    ContentPart,
    GenerationRequest,
    Message,
    StreamOptions,
    chat_tokens,
)

_REASONS = {"stop": "end_turn", "length": "max_tokens"}


class CountTokensRequest(GenerationRequest):
    """POST /v1/messages/count_tokens."""

    messages: list[Message] = Field(min_length=1)
    system: str | list[ContentPart] | None = None
    tool_choice: dict[str, Any] | None = None

    def prompts(self) -> list[list[str]]:
        """One prompt, as a chat template would put it."""
        if (self.tool_choice or {}).get("type") in ("any", "tool"):
            raise ApiError(400, "tool_choice: an emulated engine calls no tools", "tool_choice")
        return [[*chat_tokens(self._conversation()), "<|assistant|>"]]

    def asked(self, number: int) -> str:
        """The text that the length of the answer depends on."""
        return split_chat((each.role, each.text()) for each in self._conversation())[2]

    def _conversation(self) -> list[Message]:
        system = [Message(role="system", content=self.system)] if self.system else []
        return [*system, *self.messages]

    def output_limit(self) -> int | None:
        """It generates nothing."""
        return None


class MessagesRequest(CountTokensRequest):
    """POST /v1/messages."""

    max_tokens: int = Field(ge=1)
    stop_sequences: list[str] | None = None

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Where the answer ends."""
        return tuple(self.stop_sequences or ())

    @property
    def streaming(self) -> StreamOptions | None:
        """Its streams always say how many tokens there are."""
        counts = StreamOptions(include_usage=True, continuous_usage_stats=True)
        return counts if self.stream else None

    def output_limit(self) -> int | None:
        """Output tokens the client allows."""
        return self.max_tokens


class MessagesFormat(CompletionFormat):
    """/v1/messages; it has one choice."""

    id_prefix = "msg_"

    def __init__(self, response_id: str, model: str, created_unix_s: int) -> None:
        super().__init__(response_id, model, created_unix_s)
        self._stop: dict[str, Any] = {}

    def opening(self, indices: range, usage: Usage | None) -> bytes:
        """The message without its content, and the beginning of its only block."""
        message = self._message([], usage or {}, None)
        block = {"type": "text", "text": ""}
        return _event("message_start", {"message": message}) + _event(
            "content_block_start", {"index": 0, "content_block": block}
        )

    def chunk(self, answer: Answer, text: str, usage: Usage | None) -> bytes:
        """The next piece of the text."""
        if answer.finish_reason is not None:
            self._stop = _stop(answer)
        if not text:
            return b""
        return (
            "event: content_block_delta\n"
            'data: {"type":"content_block_delta","index":0,'
            f'"delta":{{"type":"text_delta","text":{quoted(text)}}}}}\n\n'
        ).encode()

    def finale(self, usage: Usage | None) -> bytes:
        """What follows the last token."""
        ended = {"delta": self._stop, "usage": _counts(usage or {})}
        return (
            _event("content_block_stop", {"index": 0})
            + _event("message_delta", ended)
            + _event("message_stop", {})
        )

    def body(self, answers: list[Answer], texts: list[str], usage: Usage) -> bytes:
        """The whole answer of a request that is not streamed."""
        content = [{"type": "text", "text": texts[0]}]
        return json.dumps(self._message(content, usage, answers[0])).encode()

    def _message(
        self, content: list[dict[str, str]], usage: Usage, answer: Answer | None
    ) -> dict[str, Any]:
        stop = {"stop_reason": None, "stop_sequence": None} if answer is None else _stop(answer)
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self._model,
            **stop,
            "usage": _counts(usage),
        }


def _stop(answer: Answer) -> dict[str, Any]:
    if answer.stop_reason is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": answer.stop_reason}
    return {"stop_reason": _REASONS[answer.finish_reason or "stop"], "stop_sequence": None}


def _counts(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.get("prompt_tokens", 0),
        "output_tokens": usage.get("completion_tokens", 0),
    }


def _event(name: str, fields: dict[str, Any]) -> bytes:
    data = json.dumps({"type": name, **fields}, separators=(",", ":"))
    return f"event: {name}\ndata: {data}\n\n".encode()


def error_body(error: ApiError) -> dict[str, Any]:
    """An error in Anthropic's shape."""
    kind = {400: "invalid_request_error", 404: "not_found_error"}.get(error.status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}
