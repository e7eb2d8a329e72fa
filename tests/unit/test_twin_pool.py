"""The prefix cache's bookkeeping: blocks of equal content, the free queue, moving block tables."""

from random import Random

import pytest

from foretell.engine import Content, Sequence, StepBatch, Twin
from foretell.kernel.layout import NONE
from foretell.model import EngineConfig

BLOCK = 4


def engine(blocks: int, max_num_scheduled_tokens: int = 64, **changes: bool) -> Twin:
    config = EngineConfig("m", BLOCK, blocks, 8, max_num_scheduled_tokens, 512, **changes)  # type: ignore[arg-type]
    return Twin(config, prefix_cache=True)


def seq(name: str, *prompt: tuple[str, int], output: int = 1, eos: bool = False) -> Sequence:
    tokens = sum(count for _, count in prompt)
    limit = output + 9 if eos else output
    return Sequence(name, tokens, output, limit, content=Content(prompt, f"out:{name}", BLOCK))


def serve(twin: Twin, *sequences: Sequence) -> None:
    for sequence in sequences:
        twin.add(sequence)
    in_flight: list[StepBatch] = []
    while not twin.idle or in_flight:
        batch = twin.schedule()
        if batch is not None:
            in_flight.append(batch)
        if batch is None or len(in_flight) == twin.max_steps_in_flight:
            twin.complete(in_flight.pop(0))
        check(twin)


def check(twin: Twin) -> None:
    """In addition to `Twin.check`, compare the two linked lists with the blocks' own fields."""
    twin.check()
    state = twin._state
    blocks, engine = state.blocks, state.engine
    members: dict[int, list[int]] = {}
    for index, content in enumerate(blocks["content"].tolist()):
        members.setdefault(content, []).append(index)
    for content, first in enumerate(state.first_with.tolist()):
        linked, before, index = [], NONE, first
        while index != NONE:
            assert blocks[index]["previous_same"] == before
            linked.append(index)
            before, index = index, int(blocks[index]["next_same"])
        assert sorted(linked) == members.get(content, [])
    index, before, free = int(engine["lru_head"]), NONE, []
    while index != NONE:
        assert blocks[index]["previous"] == before
        free.append(index)
        before, index = index, int(blocks[index]["next"])
    assert engine["lru_tail"] == before
    cached = [i for i, b in enumerate(blocks) if b["refs"] == 0 and b["content"] != NONE]
    assert sorted(free) == cached


@pytest.mark.parametrize("copies", [2, 3])
def test_of_equal_blocks_the_last_is_hit_when_those_before_are_gone(copies: int) -> None:
    twin = engine(1 + copies)
    # All compute the last block, because a prompt's last token is always computed.
    serve(twin, *(seq(f"r{i}", ("p", 8)) for i in range(copies)))
    serve(twin, seq("other", ("o", 4 * (copies - 1))))  # takes the blocks of all but the last
    again = seq("again", ("p", 8), ("x", 1))
    serve(twin, again)
    assert again.cached_tokens == 8


def test_blocks_that_somebody_holds_cost_who_hits_them_nothing() -> None:
    twin = engine(4)
    twin.add(seq("a", ("p", 8), ("x", 3)))
    twin.add(seq("b", ("p", 8), ("y", 3)))
    batch = twin.schedule()
    assert batch is not None
    assert [s.request_id for s in batch.admitted] == ["a", "b"]
    assert twin.free_blocks == 0
    check(twin)


def test_the_tail_of_a_prompt_is_given_up_before_its_head() -> None:
    twin = engine(2)
    serve(twin, seq("a", ("p", 8)), seq("other", ("o", 4)))
    again = seq("b", ("p", 8))
    serve(twin, again)
    assert again.cached_tokens == 4


def test_a_block_is_hit_only_when_the_step_that_fills_it_is_complete() -> None:
    twin = engine(32, async_scheduling=True)
    talker = seq("a", ("p", 4), output=9)
    twin.add(talker)
    in_flight = [twin.schedule(), twin.schedule()]
    filled = []
    for _ in range(5):
        batch = in_flight.pop(0)
        assert batch is not None
        twin.complete(batch)
        known = int((twin._state.blocks["content"] != NONE).sum())
        filled.append((talker.output_tokens, talker.computed_tokens, known))
        in_flight.append(twin.schedule())
    # The prompt's block; and one of four outputs, once the step after the fourth is complete.
    assert filled == [(1, 5, 1), (2, 6, 1), (3, 7, 1), (4, 8, 1), (5, 9, 2)]


def test_who_is_preempted_finds_its_own_output_again() -> None:
    twin = engine(5)
    longer = seq("b", ("q", 6), output=12)
    serve(twin, seq("a", ("p", 6), output=5), longer)
    assert longer.preemptions == 1
    assert longer.cached_tokens == 8  # six of the prompt, and two that it had generated


def test_the_last_output_of_an_end_that_was_foreseen_is_hit() -> None:
    for async_scheduling in (False, True):
        twin = engine(32, async_scheduling=async_scheduling)
        serve(twin, seq("a", ("p", 4), output=5))
        again = seq("b", ("p", 4), ("out:a", 5))
        serve(twin, again)
        assert again.cached_tokens == 8


@pytest.mark.parametrize("seed", range(12))
def test_the_pool_stays_in_order(seed: int) -> None:
    rng = Random(seed)
    blocks = rng.randint(8, 24)
    twin = engine(
        blocks,
        rng.choice([8, 64]),
        async_scheduling=rng.random() < 0.5,
        reserve_full_isl=rng.random() < 0.5,
    )
    todo = [
        seq(
            f"r{i}",
            (rng.choice("pq"), rng.randint(1, 14)),
            (rng.choice("xyz"), rng.randint(0, 6)),
            output=rng.randint(1, 10),
            eos=rng.random() < 0.5,
        )
        for i in range(25)
    ]
    requests: list[Sequence] = list(todo)
    in_flight: list[StepBatch] = []
    for _ in range(600):
        if todo and rng.random() < 0.5:
            twin.add(todo.pop())
        if len(in_flight) < twin.max_steps_in_flight and (batch := twin.schedule()):
            in_flight.append(batch)
        elif in_flight:
            twin.complete(in_flight.pop(0))
        if rng.random() < 0.03:
            twin.abort(f"r{rng.randrange(25)}")
        check(twin)
        if twin.idle and not todo and not in_flight:
            break
    assert twin.idle
    assert twin.free_blocks == blocks
    assert all(request.ended for request in requests)
    assert any(request.cached_tokens for request in requests)


def test_tables_of_running_requests_move_when_room_is_made() -> None:
    twin = engine(400)
    long = seq("long", ("p", 8), output=250)
    serve(twin, seq("before", ("o", 9)))  # its place before the long request's is freed
    twin.add(long)
    place = int(long.row["place"])
    for i in range(180):  # six blocks of table each: more than there is room for at first
        twin.add(seq(f"r{i}", (f"own {i}", 21)))
        batch = twin.schedule()
        assert batch is not None
        twin.complete(batch)
        twin.check()
    assert int(long.row["place"]) < place
    serve(twin)
    answer = seq("next", ("p", 8), ("out:long", 250))
    serve(twin, answer)
    assert answer.cached_tokens == 256  # all except the last token's block
