"""Priorities in the twin: who waits in front, who is preempted, and what that frees."""

from foretell.engine import Sequence, Twin
from foretell.model import EngineConfig


def engine(**changes: object) -> Twin:
    values: dict[str, object] = {
        "block_size_tokens": 16,
        "total_blocks": 4,
        "max_num_seqs": 8,
        "max_num_scheduled_tokens": 64,
        "max_model_len": 1024,
        "policy": "priority",
    }
    return Twin(EngineConfig("m", **(values | changes)))  # type: ignore[arg-type]


def seq(name: str, prompt: int = 30, **changes: object) -> Sequence:
    return Sequence(name, prompt, 20, 20, **changes)  # type: ignore[arg-type]


def names(sequences: list[Sequence]) -> list[str]:
    return [s.request_id for s in sequences]


def step(twin: Twin) -> tuple[dict[str, int], list[str]]:
    """The tokens by request of the next step, which is completed, and the requests it preempted."""
    batch = twin.schedule()
    assert batch is not None
    twin.complete(batch)
    twin.check()
    return {s.request_id: n for s, n in batch.scheduled}, names(batch.preempted)


def test_equals_wait_in_the_order_of_their_arrival() -> None:
    twin = engine()
    for name, arrival in (("c", 3.0), ("a", 1.0), ("d", 3.0), ("b", 2.0)):
        twin.add(seq(name, arrival_s=arrival))
    assert names(twin.waiting) == ["a", "b", "c", "d"]  # c and d in the order of addition


def test_a_preempted_request_waits_in_its_place_and_not_in_front() -> None:
    twin = engine(max_num_seqs=2)
    twin.add(seq("low", priority=5))
    step(twin)
    twin.add(seq("high", priority=0))
    twin.add(seq("middle", priority=1))
    for _ in range(2):
        assert step(twin)[1] == []
    assert step(twin) == ({}, ["low"])
    assert names(twin.waiting) == ["middle", "low"]


def test_of_equals_the_last_to_arrive_is_preempted_even_if_it_was_admitted_first() -> None:
    for arrival_of_first, victim in ((2.0, "first"), (0.5, "second"), (1.0, "first")):
        twin = engine()
        twin.add(seq("first", arrival_s=arrival_of_first))
        step(twin)
        twin.add(seq("second", arrival_s=1.0))
        preempted: list[str] = []
        while not preempted:
            preempted = step(twin)[1]
        assert preempted == [victim]  # of two that arrived together, the first in the list


def test_a_victim_that_was_in_the_step_already_gives_its_tokens_back() -> None:
    twin = engine(
        total_blocks=6,
        max_num_scheduled_tokens=20,
        long_prefill_token_threshold=10,
        long_prefill_threshold_when_alone=True,
        reserve_full_isl=False,
    )
    twin.add(seq("low", 200, priority=5))
    assert step(twin)[0] == {"low": 10}
    twin.add(seq("high", 15, priority=0))
    twin.add(seq("middle", 100, priority=1))
    assert step(twin)[0] == {"low": 10, "high": 10}
    assert step(twin)[0] == {"low": 10, "high": 5, "middle": 5}
    assert step(twin)[0] == {"low": 10, "high": 1, "middle": 9}
    # low takes the last block; high needs one and gets low's, whose 10 tokens are free again.
    assert step(twin) == ({"high": 1, "middle": 10}, ["low"])
