"""Files of offline requests: one JSON object a line, as the OpenAI batch API takes them."""

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from foretell.length.conversation import MOST_EXCHANGES, Conversation, head_and_tail, split_chat
from foretell.offline.tree import Prompt

_CHARACTERS = 4  # of a token, where only the text is known


@dataclass(frozen=True, slots=True)
class Line:
    """One request of a file."""

    text: str
    """The line as it stands there."""
    prompt: Prompt
    """Its tokens, or a number for each four characters."""
    conversation: Conversation
    known_tokens: int
    """Output tokens, where the request fixes them; otherwise 0."""


def read_lines(path: Path) -> Iterator[Line]:
    """The requests of a file; ValueError that names the line for what is none."""
    with path.open(encoding="utf-8") as file:
        for number, text in enumerate(file, 1):
            if not text.strip():
                continue
            try:
                data = json.loads(text)
                yield _line(text.rstrip("\n"), data.get("body", data))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise ValueError(f"{path}, line {number}: no request ({error})") from error


def _line(text: str, body: Mapping[str, Any]) -> Line:
    if "messages" in body:
        messages = [(str(each["role"]), _text(each.get("content"))) for each in body["messages"]]
    else:
        messages = [("user", _text(body["prompt"]))]
    prompt = _tokens(body.get("prompt"), messages)
    system, earlier, asked = split_chat(messages)
    most = body.get("max_completion_tokens") or body.get("max_tokens") or 0
    fixed = body.get("ignore_eos") or body.get("min_tokens") == most
    conversation = Conversation(
        head_and_tail(asked),
        len(asked),
        len(prompt),
        head_and_tail(system),
        tuple(earlier[-MOST_EXCHANGES:]),
        len(earlier),
        int(most),
    )
    return Line(text, prompt, conversation, int(most) if most and fixed else 0)


def _text(content: Any) -> str:
    """The text of a message or prompt; parts that are no text count by their JSON."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    return "\n".join(
        each["text"] if isinstance(each, dict) and "text" in each else json.dumps(each)
        for each in parts
        if each is not None
    )


def _tokens(prompt: Any, messages: list[tuple[str, str]]) -> Prompt:
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        return np.array(prompt, np.int64)
    text = "".join(f"<{role}>\n{content}\n" for role, content in messages)
    places = range(0, len(text), _CHARACTERS)
    return [zlib.crc32(text[place : place + _CHARACTERS].encode()) for place in places]
