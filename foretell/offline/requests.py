"""Reads offline requests from files: one JSON object per line, as in OpenAI's Batch API."""

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretell.length.conversation import MOST_EXCHANGES, Conversation, head_and_tail, split_chat
from foretell.offline.tree import Prompt

_CHARACTERS = 4  # per token, if only the text is known
_LIMIT = 1 << 31  # larger limits of tokens are cut to this
_NO_REQUEST = (ValueError, TypeError, KeyError, AttributeError, OverflowError)


@dataclass(frozen=True, slots=True)
class Line:
    """One request of a file."""

    number: int
    """Its line number in the file, counted from 1."""
    conversation: Conversation
    known_tokens: int
    """Output tokens if the request fixes them; otherwise 0."""


def requests_of(lines: Iterable[bytes]) -> Iterator[tuple[Line, Prompt]]:
    """Yield the requests in the lines of a file, each with its token ids or, for text, a number for
    each four characters.

    It is a generator because a file may have more tokens than fit in memory. Raises ValueError with
    the line number for a line that is no request.
    """
    for number, raw in enumerate(lines, 1):
        if not raw.strip():
            continue
        try:
            data = json.loads(raw)
            read = _line(number, data.get("body", data))
        except _NO_REQUEST as error:
            raise ValueError(f"line {number}: no request ({error})") from error
        yield read


def _line(number: int, body: Mapping[str, Any]) -> tuple[Line, Prompt]:
    messages = _messages(body)
    prompt = _tokens(body.get("prompt"), messages)
    system, earlier, asked = split_chat(messages)
    limits = (body.get(f"max_{name}tokens") for name in ("completion_", "output_", ""))
    most = min(max(0, int(next(filter(None, limits), 0))), _LIMIT)
    fixed = body.get("ignore_eos") or body.get("min_tokens") == most
    conversation = Conversation(
        head_and_tail(asked),
        len(asked),
        len(prompt),
        head_and_tail(system),
        tuple(earlier[-MOST_EXCHANGES:]),
        len(earlier),
        most,
    )
    return Line(number, conversation, most if fixed else 0), prompt


def _messages(body: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Roles and texts of a chat, of a request for a response, or of a prompt."""
    if "messages" in body:
        return [(str(each["role"]), _text(each.get("content"))) for each in body["messages"]]
    if "input" not in body:
        return [("user", _text(body["prompt"]))]
    asked = body["input"]
    items = [{"content": asked}] if isinstance(asked, str) else asked
    said = [(str(each.get("role", "user")), _text(each.get("content"))) for each in items]
    instructions = body.get("instructions")
    return [("system", _text(instructions)), *said] if instructions else said


def _text(content: Any) -> str:
    """The text of a message or prompt; parts that are no text count by their JSON."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    return "\n".join(_part(each) for each in parts if each is not None)


def _part(part: Any) -> str:
    if type(part) is int:  # a token, of which there may be thousands
        return str(part)
    return str(part["text"]) if isinstance(part, dict) and "text" in part else json.dumps(part)


def _tokens(prompt: Any, messages: list[tuple[str, str]]) -> Prompt:
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        return np.array(prompt, np.int64)
    text = "".join(f"<{role}>\n{content}\n" for role, content in messages)
    places = range(0, len(text), _CHARACTERS)
    return [zlib.crc32(text[place : place + _CHARACTERS].encode()) for place in places]
