"""A small base model of output lengths, and streams of requests to adapt it to.

The model stands in for the encoder: a multinomial regression of the bin on `features`, trained on
conversations with one serving model.
"""

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.length.bins import BINS, bin_of
from foretell.length.conversation import MOST_EXCHANGES, Conversation, Exchange, head_and_tail
from foretell.length.features import features

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LEAST_SPREAD = 1e-6
_EPOCHS, _BATCH, _RATE, _DECAY = 8, 512, 0.01, 1e-4


@dataclass(frozen=True, slots=True)
class Stream:
    """One serving model's answers in the order of the file."""

    name: str
    features: Floats
    """(n, features) of the requests."""
    tokens: Ints
    censored: NDArray[np.bool_]
    groups: tuple[str, ...]
    """Who sent each request; all "" where that is not known."""

    def __len__(self) -> int:
        return len(self.tokens)


class Base:
    """A softmax over the bins, linear in the standardised features."""

    def __init__(self, stream: Stream, rng: np.random.Generator) -> None:
        """Trained by Adam; an answer that was cut counts as any of the bins from its own on."""
        self._mean = stream.features.mean(axis=0)
        self._scale = stream.features.std(axis=0)
        self._scale[self._scale < _LEAST_SPREAD] = np.inf
        inputs = self._inputs(stream.features)
        possible = _possible(stream)
        weights = np.zeros((inputs.shape[1], BINS))
        mean, square = np.zeros_like(weights), np.zeros_like(weights)
        steps = _EPOCHS * (len(stream) // _BATCH)
        order = np.concatenate([rng.permutation(len(stream)) for _ in range(_EPOCHS + 1)])
        for step in range(1, steps + 1):
            rows = order[(step - 1) * _BATCH : step * _BATCH]
            guess = _softmax(inputs[rows] @ weights)
            wanted = guess * possible[rows]
            wanted /= wanted.sum(axis=1, keepdims=True)
            slope = inputs[rows].T @ (guess - wanted) / _BATCH + _DECAY * weights
            mean = 0.9 * mean + 0.1 * slope
            square = 0.99 * square + 0.01 * slope**2
            corrected = np.sqrt(square / (1 - 0.99**step)) + 1e-8
            rate = _RATE * (1 - (step - 1) / steps)
            weights -= rate * mean / (1 - 0.9**step) / corrected
        self._weights = weights

    def probabilities(self, stream: Stream) -> Floats:
        """(n, `BINS`)."""
        return _softmax(self._inputs(stream.features) @ self._weights)

    def seen(self, stream: Stream) -> Floats:
        """Standardised features, (n, features); 0 where none of the training's varied."""
        return self._inputs(stream.features)[:, :-1]

    def _inputs(self, rows: Floats) -> Floats:
        scaled = np.clip((rows - self._mean) / self._scale, -4.0, 4.0)
        return np.column_stack([scaled, np.ones(len(rows))])


def _possible(stream: Stream) -> Floats:
    own = bin_of(stream.tokens)[:, None]
    every = np.arange(BINS)
    return np.where(stream.censored[:, None], every >= own, every == own).astype(np.float64)


def _softmax(scores: Floats) -> Floats:
    grown = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(grown / grown.sum(axis=1, keepdims=True))


def sharegpt(path: Path, name: str) -> Stream:
    """Conversations with what was said before each prompt."""
    kept: list[tuple[Conversation, int, bool]] = []
    earlier: list[Exchange] = []
    part = ""
    for row in _rows(path):
        if row["part"] != part:
            part, earlier = row["part"], []
        conversation = replace(
            _conversation(row["prompt"], row["in_tok"] + row["hist_tok"]),
            earlier=tuple(earlier[-MOST_EXCHANGES:]),
            exchanges=row["turn"],
        )
        kept.append((conversation, row["out_tok"], bool(row["trunc"])))
        texts = (head_and_tail(row["prompt"]), head_and_tail(row["response"]))
        earlier.append(Exchange(*texts, len(row["response"])))
    return _stream(name, kept)


def streams(folder: Path, rng: np.random.Generator) -> list[Stream]:
    """A stream for every other data set in `folder`, and one of several tenants."""
    val = sharegpt(folder / "sharegpt_val.jsonl.gz", "ShareGPT")
    rows = list(_rows(folder / "alpaca5000.jsonl.gz"))
    alpaca = _answers("Alpaca", rows, lambda row: row["out_tok"])
    rows = list(_rows(folder / "gsm8k_test_mixtral_gpt4.jsonl.gz"))
    mixtral = _answers("GSM8K, Mixtral", rows, lambda row: row["mixtral_tok"])
    gpt4 = _answers("GSM8K, GPT-4", rows, lambda row: row["gpt4_tok"])
    rows = list(_rows(folder / "arena_hard_1k_11models.jsonl.gz"))
    arena = [_answers(f"Arena, {name}", rows, _of_model(name)) for name in rows[0]["outputs"]]
    tenants = mixed("three tenants", [val, alpaca, gpt4], rng)
    unknown = replace(tenants, name="the same, not told apart", groups=("",) * len(tenants))
    return [val, alpaca, mixtral, gpt4, *sorted(arena, key=lambda s: s.name), tenants, unknown]


def mixed(name: str, parts: list[Stream], rng: np.random.Generator) -> Stream:
    """Equally many first requests of all parts, in random order; the groups are the parts."""
    least = min(map(len, parts))
    order = rng.permutation(least * len(parts))
    return Stream(
        name,
        np.concatenate([part.features[:least] for part in parts])[order],
        np.concatenate([part.tokens[:least] for part in parts])[order],
        np.concatenate([part.censored[:least] for part in parts])[order],
        tuple(parts[i // least].name for i in order.tolist()),
    )


def _of_model(model: str) -> Callable[[dict[str, Any]], int]:
    return lambda row: int(row["outputs"][model]["tok"])


def _answers(
    name: str, rows: list[dict[str, Any]], tokens: Callable[[dict[str, Any]], int]
) -> Stream:
    kept = [(_conversation(row["prompt"], row["in_tok"]), tokens(row), False) for row in rows]
    return _stream(name, kept)


def _conversation(prompt: str, prompt_tokens: int) -> Conversation:
    return Conversation(head_and_tail(prompt), len(prompt), prompt_tokens)


def _stream(name: str, kept: list[tuple[Conversation, int, bool]]) -> Stream:
    """Empty answers are left out: they say nothing of length."""
    some = [entry for entry in kept if entry[1] > 0]
    return Stream(
        name,
        np.array([features(conversation) for conversation, _, _ in some]),
        np.array([tokens for _, tokens, _ in some], dtype=np.int64),
        np.array([censored for _, _, censored in some]),
        ("",) * len(some),
    )


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)
