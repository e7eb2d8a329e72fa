"""The requests by which an engine is observed, and their rows of snapshots."""

from dataclasses import dataclass, replace
from math import inf

from foretell.engine.sequence import Sequence
from foretell.engine.snapshots import restore_twin
from foretell.engine.twin import Twin
from foretell.model import EngineConfig, EngineSnapshot, RequestSpec, RequestState

ENDLESS = 1 << 30
"""Output tokens of a request without a limit."""
_SAME_STEP, _LEAST_STEP_S = 0.3, 1e-4
"""Two observers report the same step if their ends differ by less than this share of a step."""
_SLACK_TOKENS = 2
"""A stream and the twin may differ by so many tokens, since tokens are on their way."""


@dataclass(slots=True, eq=False)
class ObservedRequest:
    """One request that was sent to an engine which publishes nothing."""

    spec: RequestSpec
    sent_s: float
    """When it arrives in the engine's queue."""
    cached_tokens: int
    sequences: list[Sequence]
    tokens: int = 0
    """Output tokens of one sequence that its stream has shown; 0 without a stream."""
    streams: bool = False
    begun_s: float = 0.0
    """When it was admitted; 0: not yet."""
    ended_s: float = 0.0

    @property
    def decodes(self) -> bool:
        """Whether its stream has tokens and the twin is decoding it."""
        first = self.sequences[0] if self.sequences else None
        return bool(self.tokens and first and first.output_tokens and not first.ended)

    @property
    def lag(self) -> int:
        """How many tokens its stream is ahead of the twin; negative if behind."""
        return self.tokens - (self.sequences[0].output_tokens if self.sequences else 0)

    @property
    def is_elsewhere(self) -> bool:
        """Whether the twin contradicts the tokens of its stream."""
        return self.spec.sequences == 1 and not self.ended_s and abs(self.lag) > _SLACK_TOKENS

    def runs(self, by_tokens: bool) -> bool:
        """Whether it runs: according to its tokens, or else to its sequences in the twin."""
        computed = self.sequences[0].computed_tokens
        if not by_tokens or not self.streams or self.spec.sequences > 1:
            return bool(computed)
        return bool(self.tokens or (computed and not self.sequences[0].output_tokens))

    def begun(self, config: EngineConfig) -> list[Sequence]:
        """New sequences of it for the twin."""
        return [self._sequence(config) for _ in range(max(1, self.spec.sequences))]

    def _sequence(self, config: EngineConfig) -> Sequence:
        spec = self.spec
        prompt = min(spec.prompt_tokens, config.max_model_len - 1)
        seq = Sequence(
            spec.request_id,
            max(1, prompt),
            spec.max_tokens or ENDLESS,
            spec.max_tokens,
            arrival_s=self.sent_s,
            priority=spec.priority,
        )
        cached = min(self.cached_tokens, prompt - 1)
        seq.row["hits"] = max(0, cached) // config.block_size_tokens
        return seq

    def row(self, seq: Sequence, scheduled: int = 0, *, waits: bool = False) -> RequestState:
        """The row of a sequence, of which a step in flight computes `scheduled` tokens."""
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
        """The row of a running sequence before the step in flight: according to its tokens, or else
        to the twin."""
        row = self.row(seq)
        if not (by_tokens and self.tokens) or self.spec.sequences > 1:
            return replace(row, computed_tokens=max(0, row.computed_tokens - scheduled))
        output = max(1, self.tokens)
        return replace(row, output_tokens=output, computed_tokens=row.prompt_tokens + output - 1)


def samples(seq: Sequence) -> bool:
    """Whether the step in flight, which `seq` is part of, gives it a token."""
    return seq.computed_tokens >= seq.prompt_tokens + seq.output_tokens


def unheard(
    ends: list[tuple[float, int]], since_s: float, begun_s: float, usual_s: float
) -> list[tuple[float, int]]:
    """The given `ends`, each with the number of its steps that no observer has reported yet.

    `ends` and `since_s` are those of `ObservedEngine.progressed`. `begun_s` is the latest end that
    any observer reported; `usual_s` is the predicted time of a step."""
    counted = sum(steps for _, steps in ends[1:])
    if counted:
        usual_s = (ends[-1][0] - ends[0][0]) / counted
    found = []
    for end_s, steps in ends:
        each_s = (end_s - since_s) / steps if steps > 1 and since_s < end_s else usual_s
        new = steps
        if not begun_s - _SAME_STEP * each_s <= since_s < inf:
            part = (end_s - begun_s) / max(_LEAST_STEP_S, each_s)
            new = max(0, min(steps, int(part + 1.0 - _SAME_STEP)))
        found.append((end_s, new))
        since_s = end_s
    return found


def fitted(
    running: list[ObservedRequest], most: int
) -> tuple[list[ObservedRequest], list[ObservedRequest]]:
    """Split `running` into at most `most` sequences, and those left out: first requests that have
    ended, then the latest ones without tokens. Requests with tokens always stay."""
    over = sum(len(request.sequences) for request in running) - most
    left: list[ObservedRequest] = []
    ended = [request for request in running if request.ended_s]
    fresh = [r for r in reversed(running) if not (r.tokens or r.ended_s)]
    for request in (*ended, *fresh):
        if over > 0:
            left.append(request)
            over -= len(request.sequences)
    return [request for request in running if request not in left], left


def restored(
    config: EngineConfig, running: list[RequestState], waiting: list[RequestState], at_s: float
) -> Twin:
    """A twin with these requests and no step in flight."""
    used = sum(config.blocks_for(row.computed_tokens) for row in running)
    state = EngineSnapshot(
        instance_id="",
        engine_run_id="",
        sequence=0,
        taken_unix_s=at_s,
        published_unix_s=at_s,
        config=config,
        free_blocks=max(0, config.total_blocks - used),
        running=running,
        waiting=waiting,
        steps_in_flight=(),
        completed_steps=(),
    )
    return restore_twin(state, lambda row: row.max_tokens or ENDLESS)[0]
