"""The requests that an engine is observed by, and what is known of each as rows of snapshots."""

from dataclasses import dataclass, replace

from foretell.engine.sequence import Sequence
from foretell.model import RequestSpec, RequestState

ENDLESS = 1 << 30
"""Output tokens of a request without a limit."""


@dataclass(slots=True, eq=False)
class ObservedRequest:
    spec: RequestSpec
    sent_s: float
    """When it is in the engine's queue."""
    cached_tokens: int
    sequences: list[Sequence]
    tokens: int = 0
    """Of one sequence, as its stream has shown; of a request without, none is."""
    streams: bool = False
    begun_s: float = 0.0
    """When it was admitted; 0: it was not."""
    ended_s: float = 0.0

    def runs(self, by_tokens: bool) -> bool:
        """Whether it runs: as its tokens say, or as its sequences in the twin do."""
        computed = self.sequences[0].computed_tokens
        if not by_tokens or not self.streams or self.spec.sequences > 1:
            return bool(computed)
        return bool(self.tokens or (computed and not self.sequences[0].output_tokens))

    def row(self, seq: Sequence, scheduled: int = 0, *, waits: bool = False) -> RequestState:
        """One of its sequences, of which a step in flight computes so many tokens."""
        spec = self.spec
        return RequestState(
            request_id=spec.request_id,
            foretell_id=spec.request_id,
            prompt_tokens=seq.prompt_tokens,
            output_tokens=0 if waits and self.streams else seq.output_tokens,
            computed_tokens=0 if waits else seq.computed_tokens,
            max_tokens=spec.max_tokens or ENDLESS,
            arrival_unix_s=self.sent_s,
            cached_tokens=self.cached_tokens if waits else seq.cached_tokens,
            priority=spec.priority,
            predicted_output_tokens=spec.length.expected_tokens,
            scheduled_tokens=scheduled,
            preemptions=seq.preemptions,
        )

    def before_step(self, seq: Sequence, scheduled: int, by_tokens: bool) -> RequestState:
        """The row of a sequence that runs, without the step in flight: as its tokens say, or as the
        twin does."""
        row = self.row(seq)
        if not (by_tokens and self.tokens) or self.spec.sequences > 1:
            return replace(row, computed_tokens=max(0, row.computed_tokens - scheduled))
        output = max(1, self.tokens)
        return replace(row, output_tokens=output, computed_tokens=row.prompt_tokens + output - 1)


def samples(seq: Sequence) -> bool:
    """Whether the step in flight, of which it is, gives it a token."""
    return seq.computed_tokens >= seq.prompt_tokens + seq.output_tokens
