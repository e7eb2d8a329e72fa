"""Prefix caching in the twin: contents, blocks, and what admission does with them."""

import pytest

from foretell.engine import Content, Sequence, Twin
from foretell.model import EngineConfig

BLOCK = 4


def engine(blocks: int, **changes: int | bool) -> Twin:
    values: dict[str, int | bool] = {
        "max_num_seqs": 8,
        "max_num_scheduled_tokens": 64,
        "max_model_len": 128,
    }
    config = EngineConfig("m", BLOCK, blocks, **(values | changes))  # type: ignore[arg-type]
    return Twin(config, prefix_cache=True)


def seq(name: str, *prompt: tuple[str, int], output: int = 1) -> Sequence:
    tokens = sum(count for _, count in prompt)
    return Sequence(name, tokens, output, output, content=Content(prompt, f"out:{name}", BLOCK))


def serve(twin: Twin, *sequences: Sequence) -> None:
    for sequence in sequences:
        twin.add(sequence)
    while not twin.idle:
        batch = twin.schedule()
        assert batch is not None
        twin.complete(batch)
        twin.check()


def hashes(blocks: int, *prompt: tuple[str, int]) -> list[bytes]:
    content = Content(prompt, "out", BLOCK)
    return [content.block_hash(index) for index in range(blocks)]


def test_equal_tokens_from_the_first_on_make_equal_hashes() -> None:
    one, other = hashes(3, ("a", 6), ("b", 6)), hashes(3, ("a", 6), ("b", 2), ("c", 4))
    assert one[:2] == other[:2]
    assert one[2] != other[2]
    assert hashes(2, ("b", 4), ("a", 4)) != hashes(2, ("a", 4), ("b", 4))
    assert hashes(2, ("x", 4), ("a", 4))[1] != hashes(2, ("y", 4), ("a", 4))[1]  # chained
    assert hashes(1, ("a", 2), ("a", 2)) != hashes(1, ("a", 4))  # a0 a1 a0 a1 is not a0 a1 a2 a3
    assert hashes(1, ("a", 0), ("b", 4)) == hashes(1, ("b", 4))


def test_an_answer_is_the_prefix_of_the_next_turn() -> None:
    assert hashes(3, ("a", 6)) == hashes(3, ("a", 6), ("out", 6), ("b", 9))[:3]


def test_a_shared_prefix_is_computed_once_but_never_its_last_token() -> None:
    twin = engine(32)
    serve(twin, seq("a", ("p", 8)))
    again = seq("b", ("p", 8))
    serve(twin, again)
    assert again.cached_tokens == 4  # the last token, and so its block, is computed again
    longer = seq("c", ("p", 8), ("q", 1))
    serve(twin, longer)
    assert longer.cached_tokens == 8
    assert twin.free_blocks == 32


def test_blocks_scheduled_in_this_step_are_hit_in_this_step() -> None:
    twin = engine(32)
    first, second = seq("a", ("p", 8), ("x", 3)), seq("b", ("p", 8), ("y", 3))
    twin.add(first)
    twin.add(second)
    batch = twin.schedule()
    assert batch is not None
    assert [tokens for _, tokens in batch.scheduled] == [11, 3]
    assert twin.free_blocks == 32 - 3 - 1  # two are shared
    twin.check()


def test_the_least_recently_used_block_is_reused_first_and_a_tail_before_its_head() -> None:
    twin = engine(4)
    serve(twin, seq("a", ("p", 8)), seq("b", ("q", 8)))
    serve(twin, seq("c", ("r", 4)))  # takes one block: the tail of p
    p, q = seq("p", ("p", 8), ("x", 1)), seq("q", ("q", 8), ("x", 1))
    serve(twin, q)
    assert q.cached_tokens == 8
    serve(twin, p)
    assert p.cached_tokens < 8


def test_blocks_that_a_new_request_hits_are_not_free_for_it_as_well() -> None:
    twin = engine(4, reserve_full_isl=True)
    serve(twin, seq("a", ("p", 8)))
    hog = seq("hog", ("h", 5), output=20)
    twin.add(hog)
    batch = twin.schedule()  # takes the two blocks that were never used
    assert batch is not None
    twin.complete(batch)
    new_request = seq("b", ("p", 8), ("x", 1))
    twin.add(new_request)
    batch = twin.schedule()
    assert batch is not None
    assert new_request in twin.waiting  # two hits and one new block, and only the two are free


def test_a_request_of_unknown_content_shares_nothing() -> None:
    twin = engine(32)
    serve(twin, Sequence("a", 8, 1, 1))
    other = Sequence("b", 8, 1, 1)
    serve(twin, other)
    assert other.cached_tokens == 0
    assert twin.free_blocks == 32


def test_places_of_the_ended_are_used_again() -> None:
    twin = engine(64)
    for i in range(400):  # each needs 6 blocks of table, and all need more than there are
        served = seq(f"r{i}", ("p", 8), (f"own {i}", 9), output=5)
        serve(twin, served)
        assert served.cached_tokens == (8 if i else 0)
    assert twin.free_blocks == 64


def test_a_leak_is_noticed() -> None:
    twin = engine(8)
    twin.check()
    twin._state.engine["free"] += 1
    with pytest.raises(AssertionError, match="conserved"):
        twin.check()
