"""What is learnt about an engine by observing it from outside, compared with its true state."""

from dataclasses import replace
from random import Random

import pytest
from stepped_engine import NOW, STEP_TIME

from foretell.engine import Sequence, StepBatch, Twin
from foretell.engine.observed import ObservedEngine
from foretell.engine.progress import StreamProgress
from foretell.engine.seen_limits import (
    ASSUMED,
    OBSERVED,
    TELL_EVERY_S,
    Evidence,
    evidence_of,
    least_model_len,
)
from foretell.engine.stream_text import StreamPart
from foretell.latency.calibration import OnlineStepTime
from foretell.model import BatchShape, EngineConfig, LengthEstimate, RequestSpec
from foretell.model.limits import EngineLimits, limits_of

LIMITS = EngineLimits(4, 48, 256, 16, 40)


class Truth:
    """An engine whose answers are all streamed, and its observer."""

    way_s = 0.002
    """Seconds from a scheduler to the engine's queue."""

    def __init__(self, observed: ObservedEngine, limits: EngineLimits) -> None:
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
        self.first: dict[str, int] = {}
        self.coming: list[Sequence] = []
        self.batch: StepBatch | None = None
        self.lasts_s = 0.0

    def send(self, spec: RequestSpec, output: int) -> None:
        """Send a request that arrives in the middle of the step in flight."""
        self.tokens[spec.request_id] = 0
        at_s = self.now + self.lasts_s / 2
        self.observed.sent(spec, at_s - self.way_s)
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
            if seq.output_tokens == 1:
                self.first[seq.request_id] = len(self.ends) + 1
        for seq in outcome.finished:
            del self.tokens[seq.request_id]
            self.observed.ended(seq.request_id, self.now)
        if outcome.sampled:
            self.ends.append(self.now)
        self.begin()

    def report(self) -> None:
        self.observed.progressed(each(self.ends), self.tokens, self.first)
        self.ends, self.first = [], {}


def each(ends: list[float]) -> list[tuple[float, int]]:
    """These times as ends of one step each."""
    return [(end_s, 1) for end_s in ends]


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
    assert observed_state(observed) == ([], [])


def test_the_time_of_steps_is_that_between_tokens() -> None:
    observed = ObservedEngine("e", LIMITS, STEP_TIME.step_s)
    truth = Truth(observed, LIMITS)
    rng = Random(7)
    for i in range(3):
        truth.send(spec(rng, f"r{i}"), 40)
    for _ in range(20):
        truth.step()
    truth.report()
    completed = observed.snapshot(truth.now).completed_steps
    assert len(completed) == 20
    for step in completed[1:]:
        assert step.duration_s == pytest.approx(STEP_TIME.step_s(step.shape))


def test_what_another_observer_has_told_of_already_counts_once() -> None:
    observed = ObservedEngine("e", LIMITS, STEP_TIME.step_s)
    for name in ("one", "other"):
        observed.sent(RequestSpec(name, 20, 200, LengthEstimate(50.0)), NOW)
    ends = [NOW + 0.02 + 0.012 * i for i in range(8)]
    observed.progressed(each(ends), {"one": 8})
    observed.progressed(each([end + 0.001 for end in ends]), {"other": 7})
    rows = observed.snapshot(ends[-1]).running
    assert {row.request_id: row.output_tokens for row in rows} == {"one": 8, "other": 7}


def test_an_engine_that_runs_more_than_was_thought_has_more_seats() -> None:
    observed = ObservedEngine("e", replace(LIMITS, max_num_seqs=1), STEP_TIME.step_s)
    for name in "abc":
        observed.sent(RequestSpec(name, 20, 200, LengthEstimate(50.0)), NOW)
    before = observed.snapshot(NOW).engine_run_id
    observed.progressed(each([NOW + 0.02 * i for i in range(1, 9)]), {"a": 8, "b": 8, "c": 6})
    snapshot = observed.snapshot(NOW + 0.2)
    assert {row.request_id: row.output_tokens for row in snapshot.running} == {
        "a": 8,
        "b": 8,
        "c": 6,
    }
    assert snapshot.config.max_num_seqs == 3
    assert snapshot.engine_run_id != before


def test_who_has_no_token_when_the_twin_has_given_it_many_still_waits() -> None:
    observed = ObservedEngine("e", LIMITS, STEP_TIME.step_s)
    for name in ("runs", "waits"):
        observed.sent(RequestSpec(name, 20, 200, LengthEstimate(50.0)), NOW)
    for last in (4, 8):
        ends = [NOW + 0.02 * i for i in range(last - 3, last + 1)]
        observed.progressed(each(ends), {"runs": last, "waits": 0})
    rows = observed.snapshot(NOW + 0.2)
    state = {row.request_id: row.output_tokens for row in (*rows.running, *rows.waiting)}
    assert state == {"runs": 8, "waits": 0}


def test_as_many_run_as_do_while_others_wait() -> None:
    observed = ObservedEngine("e", EngineLimits(), STEP_TIME.step_s)
    assert observed.config.max_num_seqs == ASSUMED.max_num_seqs
    for look in range(3):
        observed.compare(Evidence(running=5, waiting=2, run="1"), NOW + look)
    assert observed.config.max_num_seqs == 5
    observed.compare(Evidence(running=0, waiting=0, run="2"), NOW + 9)  # the engine has restarted
    assert observed.config.max_num_seqs == ASSUMED.max_num_seqs
    assert observed.config.approximations == (OBSERVED,)


def test_where_nothing_is_streamed_time_passes_as_predicted() -> None:
    observed = ObservedEngine("e", LIMITS, STEP_TIME.step_s)
    observed.sent(RequestSpec("whole", 20, 200, LengthEstimate(50.0)), NOW)
    (row,) = observed.snapshot(NOW + 0.5).running
    assert 20 < row.output_tokens < 50
    observed.ended("whole", NOW + 0.5)
    assert not observed.snapshot(NOW + 1.0).running


def test_answers_that_are_no_streams_teach_how_long_a_step_takes() -> None:
    step_time = OnlineStepTime()
    observed = ObservedEngine("e", LIMITS, step_time.step_s)
    now = NOW
    for number in range(60):
        observed.sent(RequestSpec(f"r{number}", 20, 40, LengthEstimate(40.0)), now)
        observed.snapshot(now + 0.1)
        now += 40 * 0.05
        observed.ended(f"r{number}", now, 40)
        for step in observed.snapshot(now).completed_steps:
            step_time.observe(step.shape, step.duration_s)
    shape = BatchShape(decode_seqs=1, decode_pairs=40)
    assert step_time.step_s(shape) == pytest.approx(0.05, rel=0.1)


def test_how_long_requests_are_on_their_way_is_learned_where_the_engine_was_idle() -> None:
    observed = ObservedEngine("e", LIMITS, STEP_TIME.step_s)
    truth = Truth(observed, LIMITS)
    truth.way_s = 0.05
    for number in range(60):
        truth.send(RequestSpec(f"r{number}", 20, 40, LengthEstimate(9.0)), 9)
        for _ in range(9):
            truth.step()
        truth.report()
        truth.now += 1.0
    observed.sent(RequestSpec("next", 20, 40, LengthEstimate(9.0)), truth.now)
    assert observed.snapshot(truth.now).taken_unix_s - truth.now == pytest.approx(0.05, rel=0.1)


def test_ends_of_steps_that_nobody_is_known_to_make_teach_nothing() -> None:
    observed = ObservedEngine("e", LIMITS, STEP_TIME.step_s)
    observed.progressed(each([NOW, NOW + 0.1]), {"unknown": 3})
    assert observed.snapshot(NOW + 0.2).completed_steps == ()


def test_events_that_come_together_are_of_one_step() -> None:
    progress = StreamProgress()
    one, other = progress.open("one"), progress.open("other")
    for step in range(5):
        for stream in (one, other):
            at_s = 10.0 + 0.02 * step + (0.002 if stream is other else 0.0)
            progress.came(stream, StreamPart(), at_s)
    assert progress.tokens() == [5, 5]
    told = progress.take(10.1)
    assert told.ago_s == pytest.approx([0.1, 0.08, 0.06, 0.04, 0.02])
    assert told.steps == [1] * 5
    assert progress.close("other", 5, 10.1) == pytest.approx(0.02)


def test_the_first_and_the_last_events_of_a_stream_are_one_token_each() -> None:
    progress = StreamProgress()
    stream = progress.open("one")
    for at_s in (1.0, 1.0001, 1.02, 1.04, 1.0401):
        progress.came(stream, StreamPart(), at_s)
    assert progress.tokens() == [3]
    assert len(progress.take(1.1).ago_s) == 3


def test_metrics_tell_of_load_and_limits() -> None:
    found = evidence_of(
        "\n".join(
            (
                "# HELP vllm:num_requests_running x",
                'vllm:num_requests_running{engine="0",model_name="m"} 3.0',
                'vllm:num_requests_running{engine="1",model_name="m"} 2.0',
                'vllm:num_requests_waiting{engine="0",model_name="m"} 7.0',
                'vllm:cache_config_info{block_size="16",num_gpu_blocks="600"} 1.0',
                "process_start_time_seconds 1.7e+09",
            )
        )
    )
    assert found is not None
    assert (found.running, found.waiting, found.run) == (5, 7, "1.7e+09")
    assert (found.limits.block_size_tokens, found.limits.total_blocks) == (16, 600)


@pytest.mark.parametrize("text", ["", "a b c\n", "\x00", 'vllm:num_requests_running{a="b"} NaN\n'])
def test_what_are_no_metrics_tell_nothing(text: str) -> None:
    assert evidence_of(text) is None


def test_flags_of_an_engine_state_its_limits() -> None:
    flags = "--max-num-seqs 64 --chunked-prefill-size=4096 --model x --max_seq_len 8192 --trust"
    assert limits_of(flags) == EngineLimits(64, 4096, 8192)
    with pytest.raises(ValueError, match="max-num-seqs"):
        limits_of("--max-num-seqs many")


def test_models_tell_the_shortest_context() -> None:
    assert least_model_len({"data": [{"max_model_len": 4096}, {"max_model_len": 2048}, {}]}) == 2048
    assert [least_model_len(other) for other in ([], {"data": 5}, {"data": [7]}, None)] == [0] * 4


@pytest.mark.parametrize("seed", range(8))
def test_the_first_token_tells_which_step_computed_a_prompt(seed: int) -> None:
    rng = Random(seed)
    observed = ObservedEngine("e", LIMITS, STEP_TIME.step_s)
    truth = Truth(observed, LIMITS)
    truth.way_s = 0.03  # unknown to the observer
    off, steps, sent = 0, 0, 0
    while sent < 40 or truth.tokens:
        if sent < 40 and (not truth.tokens or rng.random() < 0.1):
            truth.send(RequestSpec(f"r{sent}", rng.randint(30, 44), 200, LengthEstimate(30.0)), 30)
            sent += 1
            continue
        truth.step()
        if len(truth.ends) >= 8:
            truth.report()
            for step in observed.snapshot(truth.now).completed_steps:
                off += abs(step.duration_s / STEP_TIME.step_s(step.shape) - 1) > 0.1
                steps += 1
    assert steps > 150
    assert off < 0.05 * steps
