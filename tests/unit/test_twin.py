"""The twin's rules one by one, and its invariants over many seeds."""

from dataclasses import fields
from random import Random

import pytest

from foretell.engine import Sequence, Twin
from foretell.model import BatchShape, EngineConfig

SHAPE = tuple(field.name for field in fields(BatchShape))


def config(**changes: object) -> EngineConfig:
    values: dict[str, object] = {
        "model_name": "m",
        "block_size_tokens": 16,
        "total_blocks": 100,
        "max_num_seqs": 8,
        "max_num_scheduled_tokens": 64,
        "max_model_len": 1024,
    }
    return EngineConfig(**(values | changes))  # type: ignore[arg-type]


def seq(name: str, prompt: int, output: int, **changes: object) -> Sequence:
    return Sequence(name, prompt, output, output, **changes)  # type: ignore[arg-type]


def step(twin: Twin) -> tuple[dict[str, int], list[str]]:
    batch = twin.schedule()
    assert batch is not None
    scheduled = {s.request_id: n for s, n in batch.scheduled}
    return scheduled, [s.request_id for s in twin.complete(batch).finished]


def test_steps_in_bulk_are_the_same_steps() -> None:
    for seed in range(30):
        draws, singly, bulk = Random(seed), Twin(config()), Twin(config())
        sizes = [(draws.randint(1, 300), draws.randint(1, 200)) for _ in range(20)]
        for twin in (singly, bulk):
            for index, size in enumerate(sizes):
                twin.add(seq(str(index), *size))
        while not bulk.idle:
            made = bulk.run(draws.randint(1, 300))
            for place, shape in enumerate(made.shapes.tolist()):
                batch = singly.schedule()
                assert batch is not None
                assert [getattr(batch.shape, name) for name in SHAPE] == shape
                finished = singly.complete(batch).finished
                changes = [[s.request_id for s in some] for some in made[1:]]
                last = place + 1 == len(made.shapes)
                seen = [batch.admitted, batch.preempted, finished]
                assert [[s.request_id for s in some] for some in seen] == (
                    changes if last else [[], [], []]
                )
        assert singly.idle


def test_a_request_prefills_decodes_and_gives_its_blocks_back() -> None:
    twin = Twin(config())
    twin.add(seq("a", 20, 3))
    assert step(twin) == ({"a": 20}, [])
    assert twin.free_blocks == 98
    assert step(twin) == ({"a": 1}, [])
    assert step(twin) == ({"a": 1}, ["a"])
    assert twin.free_blocks == 100
    assert twin.schedule() is None


def test_long_prompts_are_chunked_by_the_budget_and_share_steps() -> None:
    twin = Twin(config())
    twin.add(seq("a", 100, 2))
    twin.add(seq("b", 10, 2))
    assert step(twin)[0] == {"a": 64}
    assert step(twin)[0] == {"a": 36, "b": 10}
    assert step(twin)[0] == {"a": 1, "b": 1}


def test_without_chunking_a_prompt_waits_until_it_fits_the_budget_whole() -> None:
    twin = Twin(config(enable_chunked_prefill=False))
    twin.add(seq("a", 60, 2))
    twin.add(seq("b", 10, 2))
    assert step(twin)[0] == {"a": 60}
    assert step(twin)[0] == {"a": 1, "b": 10}


def test_max_num_seqs_and_its_admission_limit_bound_the_batch() -> None:
    for changes in ({"max_num_seqs": 2}, {"max_num_active_seqs": 2}):
        twin = Twin(config(**changes))
        for name in "abc":
            twin.add(seq(name, 4, 2))
        assert step(twin)[0] == {"a": 4, "b": 4}


def test_the_long_prefill_threshold_holds_only_in_company() -> None:
    twin = Twin(config(long_prefill_token_threshold=8))
    twin.add(seq("a", 40, 2))
    assert step(twin)[0] == {"a": 40}
    twin.add(seq("b", 40, 2))
    assert step(twin)[0] == {"a": 1, "b": 8}


def test_before_vllm_0_31_the_threshold_holds_alone_too() -> None:
    twin = Twin(config(long_prefill_token_threshold=8, long_prefill_threshold_when_alone=True))
    twin.add(seq("a", 20, 2))
    assert [step(twin)[0] for _ in range(3)] == [{"a": 8}, {"a": 8}, {"a": 4}]


def test_the_head_of_the_queue_blocks_those_behind_it() -> None:
    twin = Twin(config(total_blocks=4))
    twin.add(seq("a", 30, 5))
    twin.add(seq("b", 60, 5))  # needs 4 blocks, 2 are free
    twin.add(seq("c", 4, 5))
    assert step(twin)[0] == {"a": 30}


def test_full_sequence_reservation_can_be_switched_off() -> None:
    twin = Twin(config(total_blocks=6, max_num_scheduled_tokens=32, reserve_full_isl=False))
    twin.add(seq("a", 80, 2))
    twin.add(seq("b", 90, 2))
    assert step(twin)[0] == {"a": 32}
    assert step(twin)[0] == {"a": 32}
    assert step(twin)[0] == {"a": 16, "b": 16}


def test_the_watermark_keeps_headroom_while_something_runs() -> None:
    twin = Twin(config(total_blocks=9, watermark_ratio=0.2))  # two blocks of 10
    twin.add(seq("a", 96, 5))
    twin.add(seq("b", 30, 5))
    assert step(twin)[0] == {"a": 64}
    assert step(twin)[0] == {"a": 32}  # 3 blocks are free, b needs 2 and 2 more of headroom
    without = Twin(config(total_blocks=9))
    without.add(seq("a", 96, 5))
    without.add(seq("b", 30, 5))
    step(without)
    assert step(without)[0] == {"a": 32, "b": 30}


def test_the_last_admitted_is_preempted_and_recomputes_its_output_too() -> None:
    twin = Twin(config(total_blocks=4))
    twin.add(seq("a", 30, 20))
    twin.add(seq("b", 30, 20))
    step(twin)
    step(twin)
    step(twin)  # a now needs its third block
    batch = twin.schedule()
    assert batch is not None
    assert [s.request_id for s in batch.preempted] == ["b"]
    assert [s.request_id for s, _ in batch.scheduled] == ["a"]
    assert twin.waiting[0].computed_tokens == 0
    assert twin.waiting[0].output_tokens == 3
    while twin.waiting:
        twin.complete(batch)
        batch = twin.schedule()
        assert batch is not None
    assert [(s.request_id, n) for s, n in batch.scheduled] == [("b", 33)]
    assert batch.shape.prefill_seqs == 1


def test_priority_orders_the_queue_and_picks_the_worst_as_victim() -> None:
    twin = Twin(config(policy="priority", max_num_seqs=1))
    for name, priority in (("a", 1), ("b", 0), ("c", 0)):
        twin.add(seq(name, 4, 1, priority=priority, arrival_s=ord(name)))
    assert [step(twin)[0] for _ in range(3)] == [{"b": 4}, {"c": 4}, {"a": 4}]

    twin = Twin(config(policy="priority", total_blocks=4))
    twin.add(seq("low", 30, 20, priority=5))
    step(twin)
    twin.add(seq("high", 30, 20, priority=0))
    step(twin)
    step(twin)
    batch = twin.schedule()
    assert batch is not None
    assert [s.request_id for s in batch.preempted] == ["low"]
    assert batch.scheduled == []  # it preempted itself, and that ends the loop over running
    twin.complete(batch)
    assert step(twin)[0] == {"high": 1}


def test_a_sequence_ends_at_the_models_length() -> None:
    twin = Twin(config(max_model_len=32))
    twin.add(seq("a", 30, 100))
    assert step(twin)[1] == []
    assert step(twin)[1] == ["a"]


def test_a_twin_has_room_for_any_number() -> None:
    twin = Twin(config())
    requests = [seq(f"r{i}", 4, 2, arrival_s=i) for i in range(300)]
    for request in requests:
        twin.add(request)
    step(twin)
    assert [s.request_id for s in twin.running] == [f"r{i}" for i in range(8)]
    while not twin.idle:
        step(twin)
    assert all(request.ended and request.output_tokens == 2 for request in requests)
    assert twin.running == []


def test_abort_drops_running_and_waiting_sequences() -> None:
    twin = Twin(config(max_num_seqs=1))
    twin.add(seq("a", 30, 20))
    twin.add(seq("b", 30, 20))
    batch = twin.schedule()
    assert batch is not None
    assert twin.abort("a")
    assert twin.abort("b")
    assert not twin.abort("b")
    assert twin.complete(batch).sampled == []
    assert twin.idle
    assert twin.free_blocks == 100


def random_twin(rng: Random) -> tuple[Twin, list[Sequence]]:
    cfg = config(
        block_size_tokens=rng.choice([1, 4, 16]),
        total_blocks=rng.randint(30, 120),
        max_num_seqs=rng.randint(1, 12),
        max_num_scheduled_tokens=rng.randint(12, 80),
        max_model_len=30,
        policy=rng.choice(["fcfs", "priority"]),
        reserve_full_isl=rng.random() < 0.5,
        watermark_ratio=rng.choice([0.0, 0.05]),
        long_prefill_token_threshold=rng.choice([0, 0, 8]),
    )
    requests = [
        Sequence(
            f"r{i}",
            rng.randint(1, 28),
            n := rng.randint(1, 30),
            n,
            arrival_s=i,
            priority=rng.randint(0, 2),
        )
        for i in range(rng.randint(1, 40))
    ]
    return Twin(cfg), requests


@pytest.mark.parametrize("seed", range(60))
def test_every_request_ends_once_and_nothing_leaks(seed: int) -> None:
    rng = Random(seed)
    twin, requests = random_twin(rng)
    todo, ended = list(requests), []
    for _ in range(20_000):
        while todo and rng.random() < 0.4:
            twin.add(todo.pop(0))
        batch = twin.schedule()
        if batch is None:
            if not todo:
                break
            continue
        assert sum(n for _, n in batch.scheduled) <= twin.config.max_num_scheduled_tokens
        assert batch.shape.tokens == sum(n for _, n in batch.scheduled)
        twin.check()
        ended += twin.complete(batch).finished
        twin.check()
    assert sorted(map(id, ended)) == sorted(map(id, requests))
    assert twin.idle
    assert twin.free_blocks == twin.config.total_blocks
    for s in requests:
        assert s.output_tokens == min(s.stop_after, 30 - s.prompt_tokens)
