"""Forecasts compared with the twin stepped by hand, and their edge cases."""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from random import Random

import pytest
from stepped_engine import NOW, STEP_TIME, later_requests, random_engine

from foretell.engine import Sequence, SnapshotPredictor, restore_twin
from foretell.length.distribution import certain, knots
from foretell.model import (
    BatchShape,
    EngineConfig,
    EngineSnapshot,
    LengthEstimate,
    Prediction,
    RequestSpec,
    RequestState,
    Step,
)
from tests.unit.asked import asked

CONFIG = EngineConfig("m", 16, 200, 8, 64, 1024)


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


DECODING = BatchShape(decode_seqs=1, decode_pairs=50)


def decoding(tokens: float, reported_within_s: float = 0.0) -> EngineSnapshot:
    """One request decodes, with an answer of `tokens`; its first step has just begun."""
    running = RequestState(
        "r", "", 49, 1, 50, 0, NOW, predicted_output_tokens=tokens, scheduled_tokens=1
    )
    config = replace(CONFIG, reported_within_s=reported_within_s)
    return snapshot([running], steps=(Step(1, NOW, 0.0, DECODING),), config=config)


def spec(prompt: int, output: int, **changes: object) -> RequestSpec:
    length = LengthEstimate(float(output))
    return RequestSpec("new", prompt, 0, length, **changes)  # type: ignore[arg-type]


def known_length(state: RequestState) -> float:
    return state.predicted_output_tokens


def forecast(
    seen: EngineSnapshot,
    request: RequestSpec,
    now: float = NOW,
    *,
    ahead: Iterable[tuple[float, RequestSpec]] = (),
) -> Prediction:
    """Forecast with certain lengths; `ahead` are reservations and when they were made."""
    predictor = SnapshotPredictor(
        dispatch_delay_s=0.0,
        length_row=lambda estimate: certain(estimate.expected_tokens),
        prior_tokens=1.0,
    )
    predictor.hear(seen)
    for at, reserved in ahead:
        predictor.reserve(reserved, at, math.inf)
    return asked(predictor, request, STEP_TIME, now, announced_only=True)


def test_an_idle_engine_prefills_and_decodes_at_once() -> None:
    seen = forecast(snapshot(), spec(20, 3))
    first = STEP_TIME.step_s(BatchShape(1, 20, 210, 0, 0))
    rest = STEP_TIME.decode_run_s(BatchShape(decode_seqs=1, decode_pairs=21), 2)
    assert seen.ttft_s == pytest.approx(first)
    assert seen.e2e_s == pytest.approx(first + rest)
    assert seen.tpot_s == pytest.approx(rest / 2)
    assert seen.preempted_s == 0


def test_the_step_in_flight_is_waited_for_even_when_it_is_late() -> None:
    shape = BatchShape(decode_seqs=1, decode_pairs=50)
    running = [
        RequestState("r", "", 49, 1, 50, 0, NOW, predicted_output_tokens=2.0, scheduled_tokens=1)
    ]
    step = Step(1, NOW, 0.0, shape)
    early = forecast(snapshot(running, steps=(step,)), spec(20, 1))
    alone = forecast(snapshot(), spec(20, 1))
    assert early.ttft_s == pytest.approx(alone.ttft_s + STEP_TIME.step_s(shape))
    # The step should have ended a second ago; no snapshot shows that it has.
    late = forecast(snapshot(running, steps=(step,)), spec(20, 1), NOW + 1)
    assert late.ttft_s == pytest.approx(alone.ttft_s)


def test_reservations_go_first_and_delay_the_new_request() -> None:
    ahead = (NOW - 0.001, RequestSpec("other", 64, 0, LengthEstimate(5.0)))
    alone = forecast(snapshot(), spec(20, 3))
    behind = forecast(snapshot(), spec(20, 3), ahead=[ahead])
    assert behind.ttft_s > alone.ttft_s + STEP_TIME.step_s(BatchShape(1, 64, 2080, 0, 0)) * 0.9


def test_several_sequences_end_with_the_last() -> None:
    one = forecast(snapshot(), spec(20, 10))
    four = forecast(snapshot(), spec(20, 10, sequences=4))
    assert four.e2e_s > one.e2e_s
    assert four.ttft_s > one.ttft_s


def test_a_request_that_can_never_run_is_infinitely_slow() -> None:
    small = EngineConfig("m", 16, 4, 8, 64, 1024)
    seen = forecast(snapshot(config=small), spec(100, 5))
    assert math.isinf(seen.ttft_s)
    assert math.isinf(seen.e2e_s)


def test_max_tokens_and_the_models_length_cap_the_expected_output() -> None:
    capped = RequestSpec("new", 20, 3, LengthEstimate(500.0))
    assert forecast(snapshot(), capped) == forecast(snapshot(), spec(20, 3))
    short = EngineConfig("m", 16, 200, 8, 64, 23)
    assert forecast(snapshot(config=short), spec(20, 500)) == forecast(snapshot(), spec(20, 3))


def test_silence_may_also_mean_that_steps_were_not_told_yet() -> None:
    stale = decoding(9, reported_within_s=20.0)
    rolled = forecast(stale, spec(20, 2), NOW + 10)
    alone = forecast(snapshot(), spec(20, 2), NOW + 10)
    assert rolled.e2e_s == pytest.approx(alone.e2e_s)


def test_longer_silence_means_that_one_of_those_steps_still_lasts() -> None:
    step_s = STEP_TIME.step_s(DECODING)
    seen = decoding(9, reported_within_s=2.5 * step_s)  # two steps can end before one is published
    told = decoding(7)
    on_time = forecast(seen, spec(20, 2), NOW + 2.5 * step_s)
    assert on_time.ttft_s == pytest.approx(
        forecast(told, spec(20, 2), NOW + 0.5 * step_s).ttft_s, rel=1e-3
    )
    # 2.5 steps ago none had begun since: if that one ended then, 2 more are over, and half of one.
    late = forecast(seen, spec(20, 2), NOW + 10)
    told = decoding(6)
    assert late.e2e_s == pytest.approx(
        forecast(told, spec(20, 2), NOW + 0.5 * step_s).e2e_s, rel=1e-3
    )
    assert late.e2e_s > forecast(snapshot(), spec(20, 2)).e2e_s


def test_long_steps_are_told_soon_after_they_began() -> None:
    step_s = STEP_TIME.step_s(DECODING)
    seen = decoding(9, reported_within_s=0.9 * step_s)
    late = forecast(seen, spec(20, 2), NOW + 10)
    told = forecast(decoding(8), spec(20, 2), NOW + seen.config.reported_soon_s)
    assert late.e2e_s == pytest.approx(told.e2e_s, rel=1e-3)


def random_attention(rng: Random, kind: str) -> dict[str, int] | None:
    """KV cache groups; the last one has a small window or small chunks."""
    if kind == "full":
        return None
    if kind == "images":
        most = rng.randint(6, 40)
        return {
            "kv_cache_groups": 1,
            "max_num_encoder_input_tokens": most + rng.randint(0, 20),
            "encoder_cache_size": most + rng.randint(0, 60),
            "disable_chunked_mm_input": rng.random() < 0.3 and most < 19,
        }
    local = rng.choice([1, 1, 2])
    groups = {
        "kv_cache_groups": local + rng.choice([0, 1, 1]),
        "local_kv_cache_groups": local,
    }
    if kind == "chunks":
        return groups | {"attention_chunk_tokens": rng.choice([16, 48])}
    return groups | {"sliding_window_tokens": rng.choice([2, 9, 16, 33, 80])}


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("attention", ["full", "window", "chunks", "images"])
@pytest.mark.parametrize("seed", range(100))
def test_a_restored_twin_continues_exactly_and_forecasts_what_happens(
    seed: int, attention: str, async_scheduling: bool
) -> None:
    """Snapshot a twin at a random step. A forecast, which takes runs of decode steps at once, and a
    restored twin must both match what the twin then does step by step, with later requests, too.
    """
    rng = Random(seed)
    kind = random_attention(Random(f"{attention} {seed}"), attention)
    engine = random_engine(rng, async_scheduling=async_scheduling, attention=kind)
    if engine is None:
        return
    seen = engine.snapshot()
    new_request = spec(30, 25, priority=0)
    start = engine.now
    later = later_requests(rng, start, engine.twin.config)
    predicted = forecast(seen, new_request, start, ahead=later)
    copy, in_flight = restore_twin(seen, known_length)
    copied = deque(in_flight)
    mine = [Sequence("new", 30, 25, 0, arrival_s=start) for _ in range(2)]
    preempted_s = 0.0
    if len(engine.queue) == copy.max_steps_in_flight:
        engine.apply()
        copy.complete(copied.popleft())
    engine.twin.add(mine[0])
    copy.add(mine[1])
    while not mine[0].ended:
        while later and later[0][0] <= engine.now:
            at, came = later.pop(0)
            for twin in (engine.twin, copy):
                output = round(came.length.expected_tokens)
                twin.add(Sequence(came.request_id, came.prompt_tokens, output, 0, arrival_s=at))
        engine.schedule()
        batch = copy.schedule()
        if batch is not None:
            copied.append(batch)
            assert [(s.request_id, n) for s, n in engine.queue[-1][0].scheduled] == [
                (s.request_id, n) for s, n in batch.scheduled
            ]
        assert len(copied) == len(engine.queue)
        if len(copied) == copy.max_steps_in_flight or not (batch and batch.scheduled):
            before_s, tokens = engine.now, mine[0].output_tokens
            engine.apply()
            copy.complete(copied.popleft())
            if 0 < tokens == mine[0].output_tokens:
                preempted_s += engine.now - before_s
    assert predicted.preempted_s == pytest.approx(preempted_s)
    assert predicted.ttft_s == pytest.approx(engine.first["new"] - start)
    assert predicted.e2e_s == pytest.approx(engine.now - start)


@pytest.mark.parametrize("seed", range(20))
def test_uncertain_lengths_spread_the_latencies(seed: int) -> None:
    rng = Random(seed)
    runs = [
        RequestState(
            f"r{i}", "", 50, 5, 55, 500, NOW, predicted_output_tokens=60, scheduled_tokens=1
        )
        for i in range(8)
    ]
    predictor = SnapshotPredictor(dispatch_delay_s=0.0, length_row=knots, prior_tokens=100.0)
    predictor.hear(
        snapshot(runs, steps=(Step(1, NOW, 0.0, BatchShape(decode_seqs=8, decode_pairs=440)),))
    )
    new_request = RequestSpec(f"new {rng.random()}", 20, 0, LengthEstimate(40.0, source="model"))
    seen = asked(predictor, new_request, STEP_TIME, NOW)
    for mean_s, quantiles in ((seen.ttft_s, seen.ttft_quantiles), (seen.e2e_s, seen.e2e_quantiles)):
        values = [value for _, value in quantiles]
        assert values == sorted(values)
        assert 0 < values[0] < mean_s < values[-1]
    assert asked(predictor, new_request, STEP_TIME, NOW) == seen  # nothing is left to chance
