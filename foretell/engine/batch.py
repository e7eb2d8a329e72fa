"""One step of an engine: what it computes, and what came of it."""

from dataclasses import dataclass, field

from foretell.engine.sequence import Sequence
from foretell.model import BatchShape
from foretell.model.batch import prefill_pairs


@dataclass(slots=True)
class Batch:
    """One step as scheduled."""

    scheduled: list[tuple[Sequence, int]]
    """Sequences and the tokens each computes, in scheduling order."""
    admitted: list[Sequence] = field(default_factory=list)
    """Those of the scheduled sequences that left the waiting queue, in order."""
    preempted: list[Sequence] = field(default_factory=list)
    shape: BatchShape = field(default_factory=BatchShape)


@dataclass(slots=True)
class Outcome:
    """What a completed step produced."""

    sampled: list[Sequence]
    """Sequences that got one token, the finished ones included."""
    finished: list[Sequence]


def advance(scheduled: list[tuple[Sequence, int]]) -> BatchShape:
    """Count scheduled tokens as computed (`_update_after_schedule`); returns the step's shape."""
    prefill_seqs = prefill_tokens = pairs = decode_seqs = decode_pairs = 0
    for seq, tokens in scheduled:
        if tokens == 1 and seq.computed_tokens >= seq.prompt_tokens:
            decode_seqs += 1
            decode_pairs += seq.computed_tokens + 1
        else:
            prefill_seqs += 1
            prefill_tokens += tokens
            pairs += prefill_pairs(tokens, seq.computed_tokens)
        seq.computed_tokens += tokens
    return BatchShape(prefill_seqs, prefill_tokens, pairs, decode_seqs, decode_pairs)
