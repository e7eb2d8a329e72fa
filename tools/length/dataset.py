"""Answered prompts from a file of JSON lines, each with the conversation that led to it.

docs/tools.md describes the format.
"""

import gzip
import math
import zlib
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from foretell.length import PRIOR_TOKENS_PER_CHARACTER
from foretell.length.conversation import (
    ASSISTANT,
    INSTRUCTING,
    MOST_EXCHANGES,
    PLAIN,
    Conversation,
    EarlierTurn,
    head_and_tail,
    split_chat,
)
from foretell.tools.length.line import Line, parse


@dataclass(frozen=True, slots=True)
class Example:
    """A request and the length of its answer."""

    conversation: Conversation
    output_tokens: int
    censored: bool
    """The answer was cut off: its full length is only known to be at least `output_tokens`."""
    model_name: str


def read_examples(path: Path, *, limit: int = 0) -> list[Example]:
    """The examples of `path`, plain or gzipped, in its order; only the first `limit` unless 0.

    Earlier exchanges of a row are the rows of its conversation (same `model`, `conv`, and `part`
    without the number at its end) with a lower number, or with the same one and a lower `turn`,
    wherever they are among the rows read. A row with `messages` holds its own. Raises `ValueError`
    that names the file, and the line and field if one is wrong.
    """
    rows: list[_Row] = []
    at = 0
    try:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                at += 1
                if not line.isspace():
                    rows.append(_row(parse(line)))
                if len(rows) == limit > 0:
                    break
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: {error}") from error
    except ValueError as error:
        raise ValueError(f"{path}, line {max(1, at)}: {error}") from error
    if not rows:
        raise ValueError(f"{path}: no examples in it")
    return _joined(rows)


_NO_TEXTS = {"prompt": None, "messages": None, "response": "", "system": None}


@dataclass(frozen=True, slots=True)
class _Row:
    """One line, with its texts shortened."""

    key: tuple[str, str, str] | None
    """The conversation that it belongs to; None if the line holds all of it."""
    place: tuple[int, int]
    """Place in the conversation: number of the part, turn."""
    line: Line
    """Without its texts."""
    system: str
    system_characters: int
    exchange: EarlierTurn
    """The prompt, with its answer for later turns."""
    characters: int
    """Characters of the prompt."""
    earlier: tuple[EarlierTurn, ...]
    """All earlier exchanges within the line."""
    earlier_characters: int
    """Characters of the earlier exchanges."""


def _row(line: Line) -> _Row:
    chat = line.messages is not None
    messages = [(each.role, each.content) for each in line.messages or ()]
    if line.messages is None:
        messages = [("user", line.prompt or "")]
    if line.system is not None:
        messages.insert(0, ("system", line.system))
    system, earlier, prompt = _chat(messages)
    everything = sum(len(text) for _, text in messages)
    # If the answer's text is unknown, its characters are estimated.
    answer_characters = len(line.response) or round(line.out_tok / PRIOR_TOKENS_PER_CHARACTER)
    name, number = _numbered(line.part)
    return _Row(
        key=(line.model, line.conv, name) if line.conv and not chat else None,
        place=(number, line.turn),
        line=line.model_copy(update=_NO_TEXTS),
        system=head_and_tail(system),
        system_characters=len(system),
        exchange=EarlierTurn(
            head_and_tail(prompt), head_and_tail(line.response), answer_characters
        ),
        characters=len(prompt),
        earlier=earlier,
        earlier_characters=everything - len(system) - len(prompt),
    )


def _numbered(part: str) -> tuple[str, int]:
    """`part` without its final digits, and their number: ShareGPT cuts conversations into parts."""
    name = part.rstrip("0123456789")
    return name, int(part[len(name) :] or 0)


def _chat(messages: list[tuple[str, str]]) -> tuple[str, tuple[EarlierTurn, ...], str]:
    """System prompt, earlier exchanges, and the prompt to answer."""
    if messages[-1][0] == ASSISTANT:
        raise ValueError("messages: the last one must not be the assistant's")
    system, earlier, prompt = split_chat(messages)
    if not any(role not in (ASSISTANT, *INSTRUCTING) for role, _ in messages):
        raise ValueError("messages: none to be answered")
    return system, tuple(earlier), prompt


def _joined(rows: list[_Row]) -> list[Example]:
    """Every row with the earlier turns of its conversation."""
    turns: dict[tuple[str, str, str], list[_Row]] = defaultdict(list)
    for row in rows:
        if row.key is not None:
            turns[row.key].append(row)
    for conversation in turns.values():
        conversation.sort(key=lambda row: row.place)
    examples = []
    for row in rows:
        earlier, characters = row.earlier, row.earlier_characters
        if row.key is not None:
            conversation = turns[row.key]
            lower = bisect_left(conversation, row.place, key=lambda other: other.place)
            before = conversation[:lower]
            earlier = tuple(other.exchange for other in before)
            characters = sum(o.characters + o.exchange.answer_characters for o in before)
        examples.append(_example(row, earlier, characters))
    return examples


def _example(row: _Row, earlier: tuple[EarlierTurn, ...], earlier_characters: int) -> Example:
    line = row.line
    own, before = line.in_tok, line.hist_tok
    if own < 0:
        own = _guessed_tokens(row.system_characters + row.characters)
        if before < 0:
            before = _guessed_tokens(earlier_characters)
    conversation = Conversation(
        prompt=row.exchange.prompt,
        characters=row.characters,
        prompt_tokens=max(1, own + max(0, before)),
        system=row.system,
        earlier=earlier[-MOST_EXCHANGES:],
        exchanges=len(earlier),
        max_tokens=line.max_tokens,
        stops=len(line.stop),
        kind="stop" if line.stop else PLAIN,
    )
    censored = line.trunc or 0 < line.max_tokens <= line.out_tok
    return Example(conversation, line.out_tok, censored, line.model)


def _guessed_tokens(characters: int) -> int:
    return math.ceil(characters * PRIOR_TOKENS_PER_CHARACTER)
