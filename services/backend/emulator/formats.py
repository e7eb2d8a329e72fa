"""Answers as bytes, in the shapes of vLLM's generation endpoints."""

from typing import Any

import orjson

from foretell.services.backend.emulator.answer import EmulatedChoice, Usage

_DONE = b"data: [DONE]\n\n"
_REASONS = {"stop": "end_turn", "length": "max_tokens"}


class CompletionFormat:
    """/v1/completions."""

    id_prefix = "cmpl-"
    kind = chunk_kind = "text_completion"

    def __init__(self, response_id: str, model: str, created_unix_s: int) -> None:
        self._id, self._model = response_id, model
        self._made = {"created": created_unix_s, "model": model}

    def opening(self, choices: int, usage: Usage | None) -> bytes:
        """What is sent before the first token of any choice."""
        return b""

    def chunk(self, answer: EmulatedChoice, text: str, usage: Usage | None) -> bytes:
        """The next piece of one choice, with its finish reason if `answer` has ended."""
        return self._event([self._choice(answer, self._piece(text), answer.new_ids)], usage)

    def finale(self, usage: Usage | None) -> bytes:
        """What follows the last token; `usage`: what `stream_options.include_usage` asks for."""
        return (self._event([], usage) if usage else b"") + _DONE

    def body(self, answers: list[EmulatedChoice], texts: list[str], usage: Usage) -> bytes:
        """The whole answer of a request that is not streamed."""
        each = zip(answers, texts, strict=True)
        choices = [self._choice(answer, self._whole(text), None) for answer, text in each]
        head = {"id": self._id, "object": self.kind, **self._made, "choices": choices}
        return orjson.dumps(head | {"usage": usage})

    def _piece(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _whole(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _choice(
        self, answer: EmulatedChoice, content: dict[str, Any], ids: list[int] | None
    ) -> dict[str, Any]:
        return {
            "index": answer.index,
            **content,
            "logprobs": None,
            "finish_reason": answer.finish_reason,
            "stop_reason": answer.stop_reason,
            "token_ids": ids,
        }

    def _event(self, choices: list[dict[str, Any]], usage: Usage | None) -> bytes:
        event = {"id": self._id, "object": self.chunk_kind, **self._made, "choices": choices}
        return b"data: " + orjson.dumps(event | {"usage": usage} if usage else event) + b"\n\n"


class ChatFormat(CompletionFormat):
    """/v1/chat/completions."""

    id_prefix = "chatcmpl-"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def opening(self, choices: int, usage: Usage | None) -> bytes:
        """A chunk with the role for each choice; vLLM sends them once there is a first token."""
        role = {"delta": {"role": "assistant", "content": ""}}
        ends = {"logprobs": None, "finish_reason": None}
        return b"".join(
            self._event([{"index": index, **role, **ends}], usage) for index in range(choices)
        )

    def _piece(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text}}

    def _whole(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}


class MessagesFormat(CompletionFormat):
    """/v1/messages, of Anthropic's API; it has one choice."""

    id_prefix = "msg_"

    def __init__(self, response_id: str, model: str, created_unix_s: int) -> None:
        super().__init__(response_id, model, created_unix_s)
        self._stop: dict[str, Any] = {}

    def opening(self, choices: int, usage: Usage | None) -> bytes:
        """The message without its content, and the beginning of its only block."""
        message = self._message([], usage or {}, None)
        block = {"index": 0, "content_block": {"type": "text", "text": ""}}
        return _named("message_start", {"message": message}) + _named("content_block_start", block)

    def chunk(self, answer: EmulatedChoice, text: str, usage: Usage | None) -> bytes:
        """The next piece of the text."""
        if answer.finish_reason is not None:
            self._stop = _stop(answer)
        if not text:
            return b""
        piece = {"index": 0, "delta": {"type": "text_delta", "text": text}}
        return _named("content_block_delta", piece)

    def finale(self, usage: Usage | None) -> bytes:
        """What follows the last token."""
        ended = {"delta": self._stop, "usage": _counts(usage or {})}
        return (
            _named("content_block_stop", {"index": 0})
            + _named("message_delta", ended)
            + _named("message_stop", {})
        )

    def body(self, answers: list[EmulatedChoice], texts: list[str], usage: Usage) -> bytes:
        """The whole answer of a request that is not streamed."""
        content = [{"type": "text", "text": texts[0]}]
        return orjson.dumps(self._message(content, usage, answers[0]))

    def _message(
        self, content: list[dict[str, str]], usage: Usage, answer: EmulatedChoice | None
    ) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self._model,
            **_stop(answer),
            "usage": _counts(usage),
        }


def _stop(answer: EmulatedChoice | None) -> dict[str, Any]:
    """Why an answer has ended; `answer` None: it has not."""
    if answer is not None and answer.stop_reason is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": answer.stop_reason}
    reason = answer and _REASONS[answer.finish_reason or "stop"]
    return {"stop_reason": reason, "stop_sequence": None}


def _counts(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.get("prompt_tokens", 0),
        "output_tokens": usage.get("completion_tokens", 0),
    }


def _named(name: str, fields: dict[str, Any]) -> bytes:
    return f"event: {name}\n".encode() + b"data: " + orjson.dumps({"type": name} | fields) + b"\n\n"
