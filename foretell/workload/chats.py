"""A few hundred real prompts and the lengths of real answers to them.

Half are hard questions from FastChat's arena-hard set, answered by Llama-2-70b-chat, half are
exercises from GSM8K, answered by Mixtral, as RouteLLM published them (Apache-2.0 and MIT).
The code that made the file is in the history up to commit 3ffefd7 (`bench.length.make_chats`).
"""

import gzip
import json
from dataclasses import dataclass
from functools import cache
from importlib import resources

from foretell.workload.stream import Arrival
from foretell.workload.traces import Trace

FILE = "chats.jsonl.gz"
PER_S = 5.0
"""Chats a second that keep four emulated A30 busy, but not full."""


@dataclass(frozen=True, slots=True)
class Chat:
    """One prompt, and how long both it and its answer are in tokens."""

    prompt: str
    prompt_tokens: int
    output_tokens: int


@cache
def shipped_chats() -> tuple[Chat, ...]:
    """The chats that ship with the package."""
    packed = (resources.files("foretell.workload") / FILE).read_bytes()
    rows = map(json.loads, gzip.decompress(packed).splitlines())
    return tuple(Chat(row["prompt"], row["in_tok"], row["out_tok"]) for row in rows)


def chat_trace() -> Trace:
    """The chats' lengths, without times."""
    requests = (
        Arrival(0.0, each.prompt_tokens, each.output_tokens, "") for each in shipped_chats()
    )
    return Trace(tuple(requests), timed=False)
