"""The requests of a round: unseen turns of conversations, and their times of arrival."""

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from foretell.workload import poisson

Message = dict[str, str]
MAX_TOKENS = 1024
"""The limit of every request, so that it says nothing about the length."""
_MOST_CHARACTERS, _MOST_OUTPUT = 1200, 512
_TURNS = range(3, 6)
_THINK_S = 4.0  # mean time from an answer to the next turn
_CHARACTERS_PER_TOKEN = 1.6  # of the tiny model's tokenizer on ShareGPT, measured
WORDS = ("the", "model", "server", "answers", "every", "request", "that", "waits", "for", "it")


@dataclass(frozen=True, slots=True)
class Turn:
    """A prompt with the turns before it, and the length of its answer."""

    messages: tuple[Message, ...] = field(repr=False)
    output_tokens: int

    @property
    def prompt_tokens(self) -> int:
        """Approximate number of tokens by the tiny model's tokenizer."""
        return round(sum(len(m["content"]) for m in self.messages) / _CHARACTERS_PER_TOKEN) + 5


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `after_s` counts from the start, or from the end of the previous answer."""

    request_id: str
    turn: Turn
    after_s: float
    targets_s: tuple[float, float] = (0.0, 0.0)
    """Targets of TTFT and TPOT; 0: none."""


Chain = tuple[Ask, ...]
"""Requests that each wait for the previous answer; most chains have one request."""


def read_conversations(path: Path | None) -> list[list[Turn]]:
    """The conversations of a file in the format of `foretell.tools.length.dataset`.

    Turns that are too long are left out. Earlier answers are the file's own. Without a file, turns
    are random words.
    """
    if path is None:
        return list(_invented(Random(0)))
    rows = defaultdict(list)
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            rows[row["part"]].append(row)
    found = []
    for part in rows.values():
        messages: list[Message] = []
        turns = []
        for row in sorted(part, key=lambda one: int(one["turn"])):
            messages.append({"role": "user", "content": row["prompt"]})
            if sum(len(message["content"]) for message in messages) > _MOST_CHARACTERS:
                break
            if 1 < row["out_tok"] <= _MOST_OUTPUT:
                turns.append(Turn(tuple(messages), int(row["out_tok"])))
            messages.append({"role": "assistant", "content": row["response"]})
        if turns:
            found.append(turns)
    return found


def _invented(draws: Random) -> Iterator[list[Turn]]:
    for _ in range(200):
        messages: list[Message] = []
        turns = []
        for _ in range(4):
            text = " ".join(draws.choices(WORDS, k=draws.randint(5, 25)))
            messages.append({"role": "user", "content": text})
            turns.append(Turn(tuple(messages), min(300, 10 + int(draws.expovariate(1 / 60)))))
            messages.append({"role": "assistant", "content": text})
        yield turns


def draw(
    conversations: Sequence[Sequence[Turn]],
    count: int,
    rate_per_s: float,
    seed: int,
    *,
    whole: bool = False,
    targets_s: Sequence[tuple[float, float]] = (),
) -> list[Chain]:
    """About `count` requests in chains that begin at Poisson times; a seed repeats them.

    `whole`: chains are conversations of three to five turns; otherwise each is one turn.
    """
    draws = Random(seed)
    chains: list[Chain] = []
    if whole:
        long = [turns[: _TURNS[-1]] for turns in conversations if len(turns) in _TURNS]
        drawn = draws.sample(long, min(len(long), count))
    else:
        turns = [turn for conversation in conversations for turn in conversation]
        drawn = [[turn] for turn in draws.sample(turns, count)]
    per_chain = sum(map(len, drawn)) / len(drawn)
    times_s = poisson(rate_per_s / per_chain, draws)
    number = 0
    for turns_of in drawn:
        if number >= count:
            break
        chain = []
        for place, turn in enumerate(turns_of):
            after_s = draws.expovariate(1 / _THINK_S) if place else next(times_s)
            own = draws.choice(targets_s) if targets_s else (0.0, 0.0)
            chain.append(Ask(f"{number:04d}", turn, after_s, own))
            number += 1
        chains.append(tuple(chain))
    return chains
