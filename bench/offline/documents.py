"""Offline requests for co-scheduling: questions on LooGLE's documents, and ShareGPT's prompts.

Tokens are numbers of pieces of the texts, as in `bench.offline.mixes`; equal texts are equal
tokens.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, product
from pathlib import Path

import numpy as np

from bench.offline.mixes import Tokens, rows_of, tokens_of

SECTION_TOKENS = 8000
COPIES = 3
"""Copies of each section, each with a different beginning: the data has few documents, which would
all fit into the cache."""
_VOCABULARY = 31_000
_FIRST = 100  # lower ids may be special tokens
_MOST_CHAT_TOKENS = 4000


@dataclass(frozen=True, slots=True)
class Line:
    """One offline request."""

    prompt: list[int]
    output_tokens: int


def questions(data: Path, seed: int, kind: str = "short") -> Iterator[Line]:
    """LooGLE's questions of a `kind`, "short" or "long" (how much of the document the answer
    depends on), on sections of documents, without end, in random order."""
    draws, asked = np.random.default_rng(seed), count()
    found = _sections(data, kind)
    while True:
        section, question, answer = found[int(draws.integers(len(found)))]
        numbered = np.concatenate((section, tokens_of(f" {next(asked)}"), question))
        yield Line(_ids(numbered), max(1, len(answer)))


def chats(data: Path, seed: int) -> Iterator[Line]:
    """Single prompts without common prefixes, without end, in random order."""
    draws, found = np.random.default_rng(seed), _chats(data)
    while True:
        prompt, answer = found[int(draws.integers(len(found)))]
        yield Line(_ids(prompt), max(1, len(answer)))


@lru_cache(maxsize=1)
def _sections(data: Path, kind: str) -> list[tuple[Tokens, Tokens, Tokens]]:
    """(section, question, answer): each document in parts, each part with all its questions."""
    result = []
    for row in rows_of(data / "offline" / f"loogle_{kind}dep_qa.jsonl.gz"):
        document = tokens_of(row["input"])
        pairs = [
            (tokens_of(str(pair["Q"])), tokens_of(str(pair["A"])))
            for pair in _pairs(row["qa_pairs"])
        ]
        parts = range(0, len(document) - SECTION_TOKENS + 1, SECTION_TOKENS)
        for begin, copy in product(parts, range(COPIES)):
            own = (tokens_of(f" {copy}"), document[begin : begin + SECTION_TOKENS])
            section = np.concatenate(own)
            result += [(section, question, answer) for question, answer in pairs]
    return result


def _pairs(given: object) -> list[dict[str, object]]:
    pairs = ast.literal_eval(given) if isinstance(given, str) else given
    assert isinstance(pairs, list), "questions are a list"
    return [pair for pair in pairs if "Q" in pair and "A" in pair]


@lru_cache(maxsize=1)
def _chats(data: Path) -> list[tuple[Tokens, Tokens]]:
    result = []
    for row in rows_of(data / "text" / "sharegpt_val.jsonl.gz"):
        prompt, answer = tokens_of(row["prompt"]), tokens_of(row["response"])
        if len(prompt) and len(prompt) + len(answer) < _MOST_CHAT_TOKENS:
            result.append((prompt, answer))
    return result


def _ids(tokens: Tokens) -> list[int]:
    return [int(each) for each in tokens % _VOCABULARY + _FIRST]
