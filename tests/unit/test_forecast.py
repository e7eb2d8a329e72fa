"""Forecasts against the twin stepped by hand, and their edges."""

import math
from random import Random

import pytest

from foretell.engine import PendingRequest, Sequence, Twin, forecast, restore
from foretell.latency.linear import LinearStepTime
from foretell.model import (
    BatchShape,
    EngineConfig,
    EngineSnapshot,
    LengthEstimate,
    RequestSpec,
    RequestState,
    Step,
)

STEP_TIME = LinearStepTime((0.01, 1e-4, 1e-7, 1e-4, 5e-4, 1e-6))
CONFIG = EngineConfig("m", 16, 200, 8, 64, 1024)
NOW = 1000.0


def snapshot(
    running: list[RequestState] | None = None,
    waiting: list[RequestState] | None = None,
    steps: tuple[Step, ...] = (),
    config: EngineConfig = CONFIG,
) -> EngineSnapshot:
    running, waiting = running or [], waiting or []
    used = sum(config.blocks_for(state.computed_tokens) for state in running)
    free = config.total_blocks - used
    return EngineSnapshot(
        "e", "run", 1, NOW, NOW, config, free, tuple(running), tuple(waiting), steps, ()
    )


def spec(prompt: int, output: int, **changes: object) -> RequestSpec:
    length = LengthEstimate(float(output))
    return RequestSpec("new", prompt, 0, length, **changes)  # type: ignore[arg-type]


def known_length(state: RequestState) -> float:
    return state.predicted_output_tokens


def test_an_idle_engine_prefills_and_decodes_at_once() -> None:
    seen = forecast(snapshot(), STEP_TIME, spec(20, 3), NOW, known_length)
    first = STEP_TIME.step_s(BatchShape(1, 20, 210, 0, 0))
    rest = STEP_TIME.decode_run_s(BatchShape(decode_seqs=1, decode_pairs=21), 2)
    assert seen.ttft_s == pytest.approx(first)
    assert seen.e2e_s == pytest.approx(first + rest)
    assert seen.tpot_s == pytest.approx(rest / 2)
    assert seen.preemptions == 0


def test_the_step_in_flight_is_waited_for_even_when_it_is_late() -> None:
    shape = BatchShape(decode_seqs=1, decode_pairs=50)
    running = [
        RequestState("r", "", 49, 1, 50, 0, NOW, predicted_output_tokens=2.0, scheduled_tokens=1)
    ]
    step = Step(1, NOW, 0.0, shape)
    early = forecast(snapshot(running, steps=(step,)), STEP_TIME, spec(20, 1), NOW, known_length)
    alone = forecast(snapshot(), STEP_TIME, spec(20, 1), NOW, known_length)
    assert early.ttft_s == pytest.approx(alone.ttft_s + STEP_TIME.step_s(shape))
    # The step should have ended a second ago; no snapshot says that it has.
    late = forecast(snapshot(running, steps=(step,)), STEP_TIME, spec(20, 1), NOW + 1, known_length)
    assert late.ttft_s == pytest.approx(alone.ttft_s)


def test_reservations_go_first_and_delay_the_newcomer() -> None:
    ahead = PendingRequest(NOW - 0.001, RequestSpec("other", 64, 0, LengthEstimate(5.0)))
    alone = forecast(snapshot(), STEP_TIME, spec(20, 3), NOW, known_length)
    behind = forecast(snapshot(), STEP_TIME, spec(20, 3), NOW, known_length, pending=[ahead])
    assert behind.ttft_s > alone.ttft_s + STEP_TIME.step_s(BatchShape(1, 64, 2080, 0, 0)) * 0.9


def test_several_sequences_end_with_the_last() -> None:
    one = forecast(snapshot(), STEP_TIME, spec(20, 10), NOW, known_length)
    four = forecast(snapshot(), STEP_TIME, spec(20, 10, sequences=4), NOW, known_length)
    assert four.e2e_s > one.e2e_s
    assert four.ttft_s > one.ttft_s


def test_a_request_that_can_never_run_is_infinitely_slow() -> None:
    small = EngineConfig("m", 16, 4, 8, 64, 1024)
    seen = forecast(snapshot(config=small), STEP_TIME, spec(100, 5), NOW, known_length)
    assert math.isinf(seen.ttft_s)
    assert math.isinf(seen.e2e_s)


def test_max_tokens_and_the_models_length_cap_the_expected_output() -> None:
    capped = RequestSpec("new", 20, 3, LengthEstimate(500.0))
    assert forecast(snapshot(), STEP_TIME, capped, NOW, known_length) == forecast(
        snapshot(), STEP_TIME, spec(20, 3), NOW, known_length
    )
    short = EngineConfig("m", 16, 200, 8, 64, 23)
    assert forecast(
        snapshot(config=short), STEP_TIME, spec(20, 500), NOW, known_length
    ) == forecast(snapshot(), STEP_TIME, spec(20, 3), NOW, known_length)


def test_silence_may_also_mean_that_steps_were_missed() -> None:
    shape = BatchShape(decode_seqs=1, decode_pairs=50)
    running = [
        RequestState("r", "", 49, 1, 50, 0, NOW, predicted_output_tokens=9.0, scheduled_tokens=1)
    ]
    stale = snapshot(running, steps=(Step(1, NOW, 0.0, shape),))
    rolled = forecast(
        stale, STEP_TIME, spec(20, 2), NOW + 10, known_length, every_step_published=False
    )
    alone = forecast(snapshot(), STEP_TIME, spec(20, 2), NOW + 10, known_length)
    assert rolled.e2e_s == pytest.approx(alone.e2e_s)


def state_of(seq: Sequence, scheduled: int) -> RequestState:
    return RequestState(
        request_id=seq.request_id,
        foretell_id="",
        prompt_tokens=seq.prompt_tokens,
        output_tokens=seq.output_tokens,
        computed_tokens=seq.computed_tokens,
        max_tokens=seq.max_tokens,
        arrival_unix_s=seq.arrival_s,
        predicted_output_tokens=seq.stop_after,
        scheduled_tokens=scheduled,
        in_flight_tokens=int(scheduled > 0 and seq.computed_tokens >= seq.num_tokens),
    )


@pytest.mark.parametrize("seed", range(40))
def test_a_restored_twin_continues_exactly_and_forecasts_what_happens(seed: int) -> None:
    """Snapshot a twin at a random step; restored, it must live the same future."""
    rng = Random(seed)
    config = EngineConfig("m", 16, rng.randint(20, 60), rng.randint(2, 8), 48, 256)
    twin = Twin(config)
    for i in range(rng.randint(2, 20)):
        output = rng.randint(1, 60)
        twin.add(Sequence(f"r{i}", rng.randint(1, 150), output, output))
    batch = twin.schedule()
    for _ in range(rng.randint(0, 40)):
        assert batch is not None
        following = twin.complete(batch) and twin.schedule()
        if following is None:
            return  # everything had ended: nothing to restore
        batch = following
    assert batch is not None
    scheduled = {id(s): n for s, n in batch.scheduled}
    seen = EngineSnapshot(
        "e",
        "run",
        1,
        NOW,
        NOW,
        config,
        twin.free_blocks,
        tuple(state_of(s, scheduled.get(id(s), 0)) for s in twin.running),
        tuple(state_of(s, 0) for s in twin.waiting),
        (Step(1, NOW, 0.0, batch.shape),),
        (),
    )
    predicted = forecast(seen, STEP_TIME, spec(30, 25), NOW, known_length)
    copy, copied_batch = restore(seen, known_length)

    clock = NOW + STEP_TIME.step_s(batch.shape)
    twin.complete(batch)
    copy.complete(copied_batch)
    newcomer = Sequence("new", 30, 25, 0)
    twin.add(newcomer)
    copy.add(Sequence("new", 30, 25, 0))
    first = 0.0
    while newcomer.output_tokens < 25:
        batch, copied_batch = twin.schedule(), copy.schedule()
        assert batch is not None
        assert copied_batch is not None
        assert [(s.request_id, n) for s, n in batch.scheduled] == [
            (s.request_id, n) for s, n in copied_batch.scheduled
        ]
        clock += STEP_TIME.step_s(batch.shape)
        twin.complete(batch)
        copy.complete(copied_batch)
        first = first or (clock if newcomer.output_tokens else 0.0)
    assert predicted.ttft_s == pytest.approx(first - NOW)
    assert predicted.e2e_s == pytest.approx(clock - NOW)
