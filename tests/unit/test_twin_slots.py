"""Slots of the twin's arrays: their reuse after an end, and twins that begin from a snapshot."""

import math

from foretell.engine import Sequence, SnapshotPredictor, Twin, restore_twin
from foretell.latency.linear import LinearStepTime
from foretell.length.distribution import certain
from foretell.model import (
    EngineConfig,
    EngineSnapshot,
    LengthEstimate,
    RequestSpec,
    RequestState,
)
from tests.unit.asked import asked


def config(**changes: object) -> EngineConfig:
    values: dict[str, object] = {
        "block_size_tokens": 4,
        "total_blocks": 32,
        "max_num_seqs": 8,
        "max_num_scheduled_tokens": 64,
        "max_model_len": 256,
    }
    return EngineConfig("m", **(values | changes))  # type: ignore[arg-type]


def idle(of: EngineConfig) -> EngineSnapshot:
    return EngineSnapshot("e", "run", 1, 0.0, 0.0, of, of.total_blocks, (), (), (), ())


def test_nobody_inherits_the_output_of_a_step_in_flight() -> None:
    twin = Twin(config(async_scheduling=True))
    twin.add(Sequence("a", 8, 5, 5))
    batch = twin.schedule()
    assert batch is not None
    assert twin.abort("a")
    assert twin.schedule() is None
    heir = Sequence("b", 8, 5, 5)
    twin.add(heir)
    assert twin.complete(batch).sampled == []
    assert heir.output_tokens == 0
    assert twin.schedule() is not None
    twin.check()


def test_an_abort_finds_a_request_wherever_it_is_and_every_sequence_of_it() -> None:
    twin = Twin(config(total_blocks=4, async_scheduling=True))
    first, second = (Sequence(name, 7, 5, 5) for name in "ab")
    for seq in (first, second):
        twin.add(seq)
    in_flight = [batch for _ in range(2) if (batch := twin.schedule())]
    twin.complete(in_flight.pop(0))
    if (batch := twin.schedule()) is not None:
        in_flight.append(batch)
    assert in_flight[-1].preempted == [second]
    twin.add(Sequence("c", 7, 5, 5))
    twin.add(Sequence("c", 7, 5, 5))
    assert twin.abort("b")  # preempted, with output in flight
    assert twin.abort("c")  # two sequences that were never scheduled
    assert twin.abort("a")  # running
    twin.check()
    for batch in in_flight:
        assert twin.complete(batch).sampled == []
    assert not any(twin.abort(name) for name in "abcx")
    assert twin.idle
    assert twin.free_blocks == 4


def test_an_ended_request_keeps_what_it_came_to() -> None:
    twin = Twin(config())
    served = Sequence("a", 8, 2, 2)
    twin.add(served)
    for _ in range(2):
        batch = twin.schedule()
        assert batch is not None
        twin.complete(batch)
    twin.add(Sequence("b", 5, 1, 1))
    assert twin.schedule() is not None
    assert (served.ended, served.output_tokens, served.prompt_tokens) == (True, 2, 8)


def test_room_is_made_for_more_while_some_run() -> None:
    twin = Twin(config(total_blocks=400, max_num_seqs=100))
    early = [Sequence(f"r{i}", 4, 3, 3) for i in range(4)]
    for seq in early:
        twin.add(seq)
    batch = twin.schedule()
    assert batch is not None
    for i in range(100):  # more than there is room for at first
        twin.add(Sequence(f"s{i}", 1, 1, 1))
    twin.complete(batch)
    assert [seq.output_tokens for seq in early] == [1] * 4
    assert twin.running == early
    while batch := twin.schedule():
        twin.complete(batch)
        twin.check()
    assert all(seq.ended for seq in early)


def test_a_twin_of_an_idle_engine_takes_requests() -> None:
    for async_scheduling in (False, True):
        twin, in_flight = restore_twin(
            idle(config(async_scheduling=async_scheduling)), lambda _: 1.0
        )
        assert in_flight == []
        assert twin.schedule() is None
        seq = Sequence("a", 8, 1, 1)
        twin.add(seq)
        batch = twin.schedule()
        assert batch is not None
        assert twin.complete(batch).finished == [seq]


def test_hits_that_a_snapshot_tells_are_not_computed_but_the_last_token_always_is() -> None:
    of = config()
    waiting = [
        RequestState("partly", "", 11, 0, 0, 5, 0.0, cached_tokens=8),
        RequestState("wholly", "", 8, 0, 0, 5, 1.0, cached_tokens=8),
    ]
    seen = EngineSnapshot("e", "run", 1, 0.0, 0.0, of, 32, (), tuple(waiting), (), ())
    twin, _ = restore_twin(seen, lambda _: 3.0)
    batch = twin.schedule()
    assert batch is not None
    assert {s.request_id: n for s, n in batch.scheduled} == {"partly": 3, "wholly": 4}
    assert twin.free_blocks == 32 - 3 - 2
    twin.check()


def test_a_request_that_is_preempted_and_computed_again_for_ever_is_given_up() -> None:
    # Without full-sequence reservation it is admitted again and again, and outgrows the cache.
    endless = config(total_blocks=4, max_num_scheduled_tokens=16, reserve_full_isl=False)
    predictor = SnapshotPredictor(
        dispatch_delay_s=0.0,
        length_row=lambda estimate: certain(estimate.expected_tokens),
        prior_tokens=1.0,
    )
    predictor.hear(idle(endless))
    request = RequestSpec("new", 8, 0, LengthEstimate(50.0))
    steps = LinearStepTime((0.01, 0.0, 0.0, 0.0, 0.0, 0.0))
    seen = asked(predictor, request, steps, 0.0)
    assert math.isinf(seen.ttft_s)
    assert math.isinf(seen.e2e_s)
