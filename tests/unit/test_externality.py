"""The delay that a new request adds to others: the twin run to the end with it and without it."""

import math
from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import replace
from random import Random

import pytest
from stepped_engine import NOW, STEP_TIME, SteppedEngine, later_requests, random_engine

from foretell.engine import Sequence, SnapshotPredictor, restore_twin
from foretell.length.distribution import certain, knots
from foretell.model import (
    OFFLINE_PRIORITY,
    BatchShape,
    EngineConfig,
    EngineSnapshot,
    LengthEstimate,
    Prediction,
    RequestSpec,
    RequestState,
)
from tests.unit.asked import asked, following, foretold

CONFIG = EngineConfig("m", 16, 200, 8, 64, 1024)
NEW_REQUEST = RequestSpec("new", 30, 0, LengthEstimate(25.0))


def decoding(name: str, output: int, total: float, prompt: int = 49) -> RequestState:
    return RequestState(
        name, "", prompt, output, prompt + output - 1, 0, NOW, predicted_output_tokens=total
    )


def snapshot(
    *running: RequestState, waiting: Seq[RequestState] = (), config: EngineConfig = CONFIG
) -> EngineSnapshot:
    used = sum(config.blocks_for(state.computed_tokens) for state in running)
    free = config.total_blocks - used
    return EngineSnapshot("e", "run", 1, NOW, NOW, config, free, running, tuple(waiting), (), ())


OPTIONS = {"announced_only": True, "externality": True}


def predictor_of(seen: EngineSnapshot, *, sure: bool = True) -> SnapshotPredictor:
    predictor = SnapshotPredictor(
        dispatch_delay_s=0.0,
        length_row=(lambda estimate: certain(estimate.expected_tokens)) if sure else knots,
        prior_tokens=1.0,
    )
    predictor.hear(seen)
    return predictor


def added(
    predictor: SnapshotPredictor, new_request: RequestSpec = NEW_REQUEST, now: float = NOW
) -> Prediction:
    return asked(predictor, new_request, STEP_TIME, now, **OPTIONS)


def sequence_of(request: RequestSpec, at: float) -> Sequence:
    output = round(request.length.expected_tokens)
    return Sequence(request.request_id, request.prompt_tokens, output, 0, arrival_s=at)


def go_on(
    engine: SteppedEngine, seen: EngineSnapshot, coming: list[tuple[float, Sequence]]
) -> SteppedEngine:
    """Run a copy of `engine` to the end, with the `coming` requests."""
    copy, in_flight = restore_twin(seen, lambda state: state.predicted_output_tokens)
    result = SteppedEngine(copy)
    times = [(begin, end) for _, begin, end in engine.queue]
    result.queue = deque((b, *at) for b, at in zip(in_flight, times, strict=True))
    result.now = engine.now
    result.run(coming)
    return result


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_it_is_the_difference_between_two_engines(seed: int, async_scheduling: bool) -> None:
    """One engine gets the new request, one does not; both are stepped until all have ended."""
    rng = Random(seed)
    engine = random_engine(rng, async_scheduling=async_scheduling)
    if engine is None:
        return
    seen, start = engine.snapshot(), engine.now
    later = later_requests(rng, start, engine.twin.config)
    predictor = predictor_of(seen)
    for at, reserved in later:
        predictor.reserve(reserved, at, math.inf)

    def sequences() -> list[tuple[float, Sequence]]:
        return [(at, sequence_of(request, at)) for at, request in later]

    without = go_on(engine, seen, sequences())
    beside = go_on(engine, seen, [(start, sequence_of(NEW_REQUEST, start)), *sequences()])
    prediction = added(predictor, now=start)
    assert beside.first["new"] - start == pytest.approx(prediction.ttft_s)
    for seconds, before, after in (
        (prediction.added_ttft_s, without.first, beside.first),
        (prediction.added_e2e_s, without.last, beside.last),
    ):
        assert before.keys() | {"new"} == after.keys()
        assert seconds == pytest.approx(sum(after[r] - before[r] for r in before), abs=1e-6)


def test_nobody_is_delayed_on_an_idle_engine_and_nobody_asks_in_vain() -> None:
    predictor = predictor_of(snapshot())
    assert (added(predictor).added_ttft_s, added(predictor).added_e2e_s) == (0.0, 0.0)
    unasked = asked(predictor, NEW_REQUEST, STEP_TIME, NOW, announced_only=True)
    assert (unasked.added_ttft_s, unasked.added_e2e_s) == (None, None)
    assert added(predictor)._replace(added_ttft_s=None, added_e2e_s=None) == unasked


def test_a_prompt_delays_who_decodes_by_the_steps_that_it_shares() -> None:
    running = [decoding("short", 5, 6.0), decoding("long", 5, 500.0)]
    seen = added(predictor_of(snapshot(*running)))
    assert seen.added_ttft_s == 0.0  # both have their first token already
    # The first step has the new request's prompt beside both decodes.
    alone_s, shared_s = (
        STEP_TIME.step_s(BatchShape(prompts, prompt, prompt * (prompt + 1) // 2, 2, 108))
        for prompts, prompt in ((0, 0), (1, 30))
    )
    assert seen.added_e2e_s is not None
    assert seen.added_e2e_s > 2 * (shared_s - alone_s)


def test_offline_requests_pay_nothing_for_an_online_one() -> None:
    by_priority = replace(CONFIG, policy="priority")
    online = decoding("online", 5, 300.0)
    offline = replace(decoding("offline", 5, 300.0), priority=OFFLINE_PRIORITY)
    offline_new_request = NEW_REQUEST._replace(priority=OFFLINE_PRIORITY)

    def added_s(new_request: RequestSpec, *running: RequestState) -> float:
        found = added(predictor_of(snapshot(*running, config=by_priority)), new_request).added_e2e_s
        assert found is not None
        return found

    assert added_s(NEW_REQUEST, offline) == 0.0
    assert added_s(offline_new_request, offline) > 0.0
    both = added_s(NEW_REQUEST, online, offline)
    assert 0.0 < both < added_s(offline_new_request, online, offline)


def test_who_waits_behind_a_full_engine_waits_longer_for_a_long_new_request() -> None:
    small = replace(CONFIG, max_num_seqs=2)
    running = [decoding("a", 5, 300.0)]
    waiting = [RequestState("w", "", 40, 0, 0, 0, NOW, predicted_output_tokens=5.0)]
    urgent = replace(small, policy="priority")
    ahead = NEW_REQUEST._replace(priority=-1)
    costs = [
        added(predictor_of(snapshot(*running, waiting=waiting, config=config)), new_request)
        for config, new_request in (
            (small, NEW_REQUEST),  # behind the request that waits
            (urgent, ahead),
            (urgent, ahead._replace(length=LengthEstimate(200.0))),
        )
    ]
    behind, before, longer = [cost.added_ttft_s for cost in costs]
    assert behind == 0.0
    assert before is not None
    assert longer is not None
    assert 0 < before < longer


def test_keeping_somebody_from_ever_running_is_infinitely_bad() -> None:
    tiny = replace(CONFIG, total_blocks=8, policy="priority")
    waiting = [RequestState("w", "", 40, 0, 0, 0, NOW, predicted_output_tokens=5.0)]
    predictor = predictor_of(snapshot(waiting=waiting, config=tiny))
    stuck = added(predictor, RequestSpec("new", 500, 0, LengthEstimate(5.0), priority=-1))
    assert (stuck.e2e_s, stuck.added_ttft_s, stuck.added_e2e_s) == (math.inf,) * 3
    # The new request is not to blame for requests that can never run anyway.
    hopeless = [RequestState("w", "", 500, 0, 0, 0, NOW, predicted_output_tokens=5.0)]
    seen = added(predictor_of(snapshot(waiting=hopeless, config=tiny)))
    assert (seen.e2e_s, seen.added_ttft_s, seen.added_e2e_s) == (math.inf, 0.0, 0.0)


def test_the_run_without_a_new_request_is_made_once() -> None:
    predictor = predictor_of(snapshot(decoding("a", 5, 90.0), decoding("b", 5, 40.0)), sure=False)
    cache = following(predictor, STEP_TIME, NOW)

    def added(request: RequestSpec = NEW_REQUEST) -> Prediction:
        return foretold(cache, request, NOW, **OPTIONS)

    def made() -> int:
        costs = cache._forecaster._costs
        assert costs is not None
        return int(costs.kept["made"][0])

    first = added()
    other = added(RequestSpec("other", 300, 0, LengthEstimate(80.0)))
    assert made() == 1
    assert first.added_e2e_s != other.added_e2e_s
    assert added() == first
    cache["e"].reserve(NEW_REQUEST, NOW)  # one more request is among the others
    assert added(RequestSpec("other", 300, 0, LengthEstimate(80.0))) != other
    assert made() == 2


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_what_is_kept_is_what_would_be_found_anew(async_scheduling: bool) -> None:
    """While a step is in flight, the run without the new request does not depend on the time."""
    for seed in range(12):
        engine = random_engine(Random(seed), async_scheduling=async_scheduling)
        if engine is None:
            continue
        predictor = predictor_of(engine.snapshot(), sure=False)
        kept = following(predictor, STEP_TIME, engine.now)
        for wait_s in (0.0, 0.001, 0.004, 0.5):
            now = engine.now + wait_s
            anew = following(predictor, STEP_TIME, engine.now)
            assert foretold(kept, NEW_REQUEST, now, **OPTIONS) == foretold(
                anew, NEW_REQUEST, now, **OPTIONS
            )
