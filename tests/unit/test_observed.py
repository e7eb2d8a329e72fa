"""What is observed of an engine from outside, beside its true state."""

from random import Random

import pytest
from stepped_engine import NOW, STEP_TIME

from foretell.engine import Batch, Sequence, Twin
from foretell.engine.observed import (
    TELL_EVERY_S,
    ObservedEngine,
)
from foretell.model import EngineConfig, LengthEstimate, RequestSpec
from foretell.model.limits import Limits

LIMITS = Limits(4, 48, 256, 16, 40)


class Truth:
    """An engine whose answers all stream, and who watches it from outside."""

    def __init__(self, observed: ObservedEngine, limits: Limits) -> None:
        self.observed = observed
        self.twin = Twin(
            EngineConfig(
                "m", limits.block_size_tokens, limits.total_blocks, limits.max_num_seqs,
                limits.max_num_batched_tokens, limits.max_model_len,
            )
        )  # fmt: skip
        self.now = NOW
        self.tokens: dict[str, int] = {}
        self.ends: list[float] = []
        self.coming: list[Sequence] = []
        self.batch: Batch | None = None
        self.lasts_s = 0.0

    def send(self, spec: RequestSpec, output: int) -> None:
        """In the middle of the step in flight."""
        self.tokens[spec.request_id] = 0
        at_s = self.now + self.lasts_s / 2
        self.observed.sent(spec, at_s)
        self.coming.append(
            Sequence(spec.request_id, spec.prompt_tokens, output, spec.max_tokens, arrival_s=at_s)
        )
        if self.batch is None:
            self.begin()

    def begin(self) -> None:
        for seq in self.coming:
            self.twin.add(seq)
        self.coming = []
        self.batch = self.twin.schedule()
        self.lasts_s = 0.0
        if self.batch is not None and self.batch.scheduled:
            self.lasts_s = STEP_TIME.step_s(self.batch.shape)

    def step(self) -> None:
        assert self.batch is not None
        self.now += self.lasts_s
        outcome = self.twin.complete(self.batch)
        for seq in outcome.sampled:
            self.tokens[seq.request_id] = seq.output_tokens
        for seq in outcome.finished:
            del self.tokens[seq.request_id]
            self.observed.ended(seq.request_id, self.now)
        if outcome.sampled:
            self.ends.append(self.now)
        self.begin()

    def report(self) -> None:
        self.observed.progressed(self.ends, self.tokens)
        self.ends = []


def spec(rng: Random, name: str) -> RequestSpec:
    return RequestSpec(name, rng.randint(1, 100), 200, LengthEstimate(30.0))


State = tuple[list[tuple[str, int, int, int]], list[str]]


def state_of(truth: Truth) -> State:
    scheduled = {id(s): n for s, n in truth.batch.scheduled} if truth.batch else {}
    running = [
        (s.request_id, s.computed_tokens, s.output_tokens, scheduled.get(id(s), 0))
        for s in truth.twin.running
    ]
    return running, [seq.request_id for seq in truth.twin.waiting]


def observed_state(observed: ObservedEngine) -> State:
    snapshot = observed.snapshot(0.0)
    running = [
        (r.request_id, r.computed_tokens, r.output_tokens, r.scheduled_tokens)
        for r in snapshot.running
    ]
    return running, [r.request_id for r in snapshot.waiting]


@pytest.mark.parametrize("seed", range(20))
def test_with_known_limits_it_is_the_engines_true_state(seed: int) -> None:
    rng = Random(seed)
    observed = ObservedEngine("e", LIMITS, STEP_TIME.step_s)
    truth = Truth(observed, LIMITS)
    sent, told_s, compared = 0, NOW, 0
    while sent < 30 or truth.tokens:
        if sent < 30 and (not truth.tokens or rng.random() < 0.15):
            truth.send(spec(rng, f"r{sent}"), rng.randint(1, 60))
            sent += 1
            continue
        truth.step()
        if truth.now - told_s >= TELL_EVERY_S:
            truth.report()
            told_s = truth.now
            assert observed_state(observed) == state_of(truth)
            compared += 1
    truth.report()
    assert compared > 10
    assert observed.is_idle
