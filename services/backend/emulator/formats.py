"""Answers as bytes, in the shapes of vLLM's two generation endpoints.

Chunks are put together from strings: every running stream writes one in every step, and a JSON
encoder would take most of the engine's time.
"""

import json
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from foretell.services.backend.emulator.answer import Answer

Usage = dict[str, int]

_DONE = b"data: [DONE]\n\n"


class CompletionFormat:
    """/v1/completions."""

    id_prefix = "cmpl-"
    kind = "text_completion"
    chunk_kind = "text_completion"

    def __init__(self, response_id: str, model: str, created_unix_s: int) -> None:
        self._id = response_id
        self._model = model
        self._created = created_unix_s
        self._head = (
            f'data: {{"id":{json.dumps(response_id)},"object":"{self.chunk_kind}",'
            f'"created":{created_unix_s},"model":{json.dumps(model)},"choices":['
        )

    def opening(self, indices: range, usage: Usage | None) -> bytes:
        """What goes before the first token of any choice."""
        return b""

    def chunk(self, answer: Answer, text: str, usage: Usage | None) -> bytes:
        """The next piece of one choice; tells its end when `answer` has ended."""
        choice = (
            f'{{"index":{answer.index},"text":{quoted(text)},"logprobs":null,'
            f'"finish_reason":{_or_null(answer.finish_reason)},'
            f'"stop_reason":{_or_null(answer.stop_reason)},'
            f'"prompt_token_ids":null,"token_ids":{_ids(answer)}}}'
        )
        return self._event(choice, usage)

    def finale(self, usage: Usage | None) -> bytes:
        """What follows the last token; `usage`: what `stream_options.include_usage` asks for."""
        return (self._event("", usage) if usage else b"") + _DONE

    def body(self, answers: list[Answer], texts: list[str], usage: Usage) -> bytes:
        """The whole answer of a request that is not streamed."""
        return json.dumps(
            {
                "id": self._id,
                "object": self.kind,
                "created": self._created,
                "model": self._model,
                "choices": [
                    {
                        "index": answer.index,
                        **self._content(text),
                        "logprobs": None,
                        "finish_reason": answer.finish_reason,
                        "stop_reason": answer.stop_reason,
                    }
                    for answer, text in zip(answers, texts, strict=True)
                ],
                "service_tier": None,
                "system_fingerprint": None,
                "usage": usage,
            },
            separators=(",", ":"),
        ).encode()

    def _content(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _event(self, choice: str, usage: Usage | None) -> bytes:
        tail = f',"usage":{json.dumps(usage, separators=(",", ":"))}' if usage else ""
        return f"{self._head}{choice}]{tail}}}\n\n".encode()


class ChatFormat(CompletionFormat):
    """/v1/chat/completions."""

    id_prefix = "chatcmpl-"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def opening(self, indices: range, usage: Usage | None) -> bytes:
        """vLLM tells every choice's role once there is a first token, in chunks of their own."""
        return b"".join(
            self._event(
                f'{{"index":{index},"delta":{{"role":"assistant","content":""}},'
                '"logprobs":null,"finish_reason":null}',
                usage,
            )
            for index in indices
        )

    def chunk(self, answer: Answer, text: str, usage: Usage | None) -> bytes:
        """The next piece of one choice; tells its end when `answer` has ended."""
        end = "null"
        if answer.finish_reason is not None:
            end = f'{quoted(answer.finish_reason)},"stop_reason":{_or_null(answer.stop_reason)}'
        choice = (
            f'{{"index":{answer.index},"delta":{{"content":{quoted(text)}}},'
            f'"logprobs":null,"finish_reason":{end},"token_ids":{_ids(answer)}}}'
        )
        return self._event(choice, usage)

    def _content(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}


def _ids(answer: Answer) -> str:
    return "null" if answer.new_ids is None else json.dumps(answer.new_ids, separators=(",", ":"))


def _or_null(text: str | None) -> str:
    return "null" if text is None else quoted(text)
