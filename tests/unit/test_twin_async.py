"""Async scheduling in the twin: what is foreseen, what is wasted, and what waits."""

from foretell.engine import Sequence, StepBatch, Twin
from foretell.model import EngineConfig


def engine(**changes: int) -> Twin:
    values = {"max_num_seqs": 8, "max_num_scheduled_tokens": 64, "max_model_len": 128}
    values |= {"block_size_tokens": 4, "total_blocks": 32, "async_scheduling": True}
    return Twin(EngineConfig("m", **(values | changes)))  # type: ignore[arg-type]


def scheduled(twin: Twin) -> int:
    """Tokens of the only request in the next step, which is not completed."""
    batch = twin.schedule()
    return sum(tokens for _, tokens in batch.scheduled) if batch else 0


def preempting(twin: Twin) -> list[StepBatch]:
    """The second and the third step, both in flight: three were scheduled, one is complete."""
    first, second = twin.schedule(), twin.schedule()
    assert first is not None
    assert second is not None
    assert twin.schedule() is None  # two steps are in flight
    twin.complete(first)
    third = twin.schedule()
    assert third is not None
    return [second, third]


def test_max_tokens_is_foreseen() -> None:
    twin = engine()
    twin.add(Sequence("a", 8, stop_after=2, max_tokens=2))
    first, second = twin.schedule(), twin.schedule()
    assert first is not None
    assert second is not None
    assert twin.complete(first).finished == []
    assert scheduled(twin) == 0  # the second step's token will be its last
    assert len(twin.complete(second).finished) == 1


def test_the_end_of_a_text_costs_a_slot() -> None:
    twin = engine()
    twin.add(Sequence("a", 8, stop_after=1, max_tokens=9))
    first, wasted = twin.schedule(), twin.schedule()
    assert first is not None
    assert wasted is not None
    assert [seq.request_id for seq in twin.complete(first).finished] == ["a"]
    assert twin.complete(wasted).sampled == []
    assert twin.free_blocks == 32


def test_the_models_length_is_foreseen() -> None:
    twin = engine(max_model_len=16)
    twin.add(Sequence("a", 14, stop_after=9, max_tokens=9))
    assert [scheduled(twin) for _ in range(3)] == [14, 1, 0]


def test_an_aborted_request_gets_nothing_from_its_step_in_flight() -> None:
    twin = engine()
    twin.add(Sequence("a", 8, stop_after=5, max_tokens=5))
    batch = twin.schedule()
    assert batch is not None
    assert twin.abort("a")
    assert twin.complete(batch).sampled == []
    assert twin.idle


def test_a_preempted_request_gets_its_output_in_flight_and_waits_for_it() -> None:
    twin = engine(total_blocks=4)
    first, second = (Sequence(name, 7, stop_after=5, max_tokens=5) for name in "ab")
    twin.add(first)
    twin.add(second)
    in_flight = preempting(twin)
    assert [batch.preempted for batch in in_flight] == [[], [second]]
    assert second.output_tokens == 1
    twin.abort("a")
    for batch in in_flight:
        twin.complete(batch)
    assert second.output_tokens == 2
    assert scheduled(twin) == 9  # all of it again


def test_a_preempted_request_may_end_by_its_output_in_flight() -> None:
    twin = engine(total_blocks=4)
    twin.add(Sequence("a", 7, stop_after=5, max_tokens=5))
    twin.add(Sequence("b", 7, stop_after=2, max_tokens=9))
    in_flight = preempting(twin)
    ended = [seq.request_id for batch in in_flight for seq in twin.complete(batch).finished]
    assert ended == ["b"]
    assert not twin.waiting
