"""Conversations: each prompt is one of a few system prompts, all earlier turns, and a new message.

An open loop: a turn comes when its user would have read an answer of nominal speed, however fast
the cluster really was. So every policy gets the same requests at the same times.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from foretell.workload.arrivals import Draws, poisson
from foretell.workload.lengths import LogNormal
from foretell.workload.stream import PREFIX_BLOCK_TOKENS, Arrival

_MOST_BLOCKS = 1 << 16  # of a conversation, so that their names differ from those of the next


@dataclass(frozen=True, slots=True)
class Conversations:
    """Parameters of conversations. Lengths are in tokens."""

    turns: float = 6.0
    """Mean of a geometric distribution, which `most_tokens` may cut."""
    systems: int = 8
    """Number of system prompts, all equally likely."""
    system_tokens: int = 2 * PREFIX_BLOCK_TOKENS
    message: LogNormal = field(default_factory=lambda: LogNormal(300.0, 1.5, 8192))
    answer: LogNormal = field(default_factory=lambda: LogNormal(250.0, 0.8, 2048))
    token_s: float = 0.02
    """Seconds per token of the nominal answer."""
    pause_s: float = 20.0
    """From an answer's end to the next message; mean of an exponential distribution."""
    most_tokens: int = 16_384
    """Most tokens of a prompt and its answer: a conversation ends before it gets longer."""

    def __post_init__(self) -> None:
        if self.turns < 1 or self.systems < 1 or self.system_tokens % PREFIX_BLOCK_TOKENS:
            raise ValueError(f"need a turn, a system prompt, and whole blocks of it, got {self}")


def conversations(seconds: float, qps: float, kind: Conversations, draws: Draws) -> list[Arrival]:
    """The arrivals in `seconds` of a steady stream of conversations, with about `qps` turns per
    second; some conversations began before."""
    begin_s = 2.0 * kind.turns * (kind.pause_s + kind.answer.mean * kind.token_s)
    end_s = begin_s + seconds
    found: list[Arrival] = []
    for number, start_s in enumerate(poisson(qps / kind.turns, draws)):
        if start_s >= end_s:
            break
        turns = _turns(number, start_s, kind, draws)
        found += [turn for turn in turns if begin_s <= turn.t_s < end_s]
    found.sort(key=lambda turn: turn.t_s)
    return [
        replace(turn, t_s=turn.t_s - begin_s, request_id=f"r{index}")
        for index, turn in enumerate(found)
    ]


def _turns(number: int, t_s: float, kind: Conversations, draws: Draws) -> Iterator[Arrival]:
    """The turns of one conversation."""
    system = int(draws.random() * kind.systems)
    shared = kind.system_tokens // PREFIX_BLOCK_TOKENS
    # The names of the system prompts' blocks are below 0.
    names = [-1 - (system * shared + block) for block in range(shared)]
    tokens = kind.system_tokens
    while True:
        tokens += kind.message.sample(draws)
        output = kind.answer.sample(draws)
        if tokens + output > kind.most_tokens:
            return
        blocks = range(len(names), -(-tokens // PREFIX_BLOCK_TOKENS))
        names += [number * _MOST_BLOCKS + block for block in blocks]
        yield Arrival(t_s, tokens, output, "", tuple(names))
        tokens += output
        if draws.random() * kind.turns < 1.0:
            return
        t_s += output * kind.token_s + draws.expovariate(1.0 / kind.pause_s)
