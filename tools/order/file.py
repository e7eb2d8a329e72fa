"""Files of offline requests: one JSON object a line, as the OpenAI batch API takes them."""

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from foretell.length.conversation import MOST_EXCHANGES, Conversation, head_and_tail, split_chat
from foretell.offline.tree import Prompt

_CHARACTERS = 4  # of a token, where only the text is known
_LIMIT = 1 << 31  # larger limits of tokens are none
_NO_REQUEST = (ValueError, TypeError, KeyError, AttributeError, OverflowError)


@dataclass(frozen=True, slots=True)
class Line:
    """One request of a file."""

    number: int
    """Where it stands in the file, counted from 1."""
    begin_bytes: int
    length_bytes: int
    conversation: Conversation
    known_tokens: int
    """Output tokens, where the request fixes them; otherwise 0."""


def read_lines(path: Path) -> Iterator[tuple[Line, Prompt]]:
    """The requests of a file, each with its tokens, or a number for each four characters.

    A file may have more tokens than there is memory for. ValueError that names the line for what is
    no request.
    """
    begin = 0
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            place = number, begin, len(raw)
            begin += len(raw)
            if not raw.strip():
                continue
            try:
                data = json.loads(raw)
                read = _line(place, data.get("body", data))
            except _NO_REQUEST as error:
                raise ValueError(f"{path}, line {number}: no request ({error})") from error
            yield read


def write_lines(path: Path, lines: Iterable[Line], output: Path) -> None:
    """Write `lines` of the file at `path` to `output`; ValueError if both are the same file."""
    if output.exists() and output.samefile(path):
        raise ValueError(f"{output} is the input")
    with path.open("rb") as source, output.open("wb") as target:
        for line in lines:
            source.seek(line.begin_bytes)
            target.write(source.read(line.length_bytes).rstrip(b"\r\n") + b"\n")


def _line(place: tuple[int, int, int], body: Mapping[str, Any]) -> tuple[Line, Prompt]:
    if "messages" in body:
        messages = [(str(each["role"]), _text(each.get("content"))) for each in body["messages"]]
    else:
        messages = [("user", _text(body["prompt"]))]
    prompt = _tokens(body.get("prompt"), messages)
    system, earlier, asked = split_chat(messages)
    asked_for = body.get("max_completion_tokens") or body.get("max_tokens") or 0
    most = min(max(0, int(asked_for)), _LIMIT)
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
    return Line(*place, conversation, most if fixed else 0), prompt


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
