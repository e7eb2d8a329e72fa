"""The shape of one engine step, from which its step time is predicted."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What one step computes.

    A *pair* is one query token attending one key token. A prefill chunk of `q` tokens
    behind `c` computed tokens costs `q*c + q*(q+1)/2` pairs; a decode token behind `c`
    computed tokens costs `c + 1`.
    """

    prefill_seqs: int = 0
    prefill_tokens: int = 0
    prefill_pairs: int = 0
    decode_seqs: int = 0
    decode_pairs: int = 0
    draft_tokens: int = 0
    """Draft tokens of decoding sequences, verified in addition to one token of each sequence.

    They add no pairs, because the keys that they attend to are read for that one token anyway.
    """

    @property
    def tokens(self) -> int:
        """Tokens the step feeds through the model."""
        return self.prefill_tokens + self.decode_seqs + self.draft_tokens


def prefill_pairs(query_tokens: int, computed_tokens: int) -> int:
    """Query-key pairs of a causal prefill chunk of `query_tokens` behind `computed_tokens`."""
    return query_tokens * computed_tokens + query_tokens * (query_tokens + 1) // 2


@dataclass(frozen=True, slots=True)
class Step:
    """One engine step; `duration_s` is 0 while it is in flight."""

    step: int
    started_unix_s: float
    duration_s: float
    shape: BatchShape
