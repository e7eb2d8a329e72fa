"""The prefixes that a predictor expects in its engine's prefix cache."""

from random import Random

import pytest

from foretell.engine.prefixes import MAX_PENDING, PrefixIndex
from foretell.length.prefix import chained
from foretell.model import EngineConfig, LengthEstimate, RequestSpec, Turn

CONFIG = EngineConfig("m", 16, 100, 8, 512, 4096)
CHUNK = 64.0  # four blocks


def request(name: str, topic: str, chunks: int, more: int = 10, output: float = 6.0) -> RequestSpec:
    """A prompt of `chunks` common to a `topic`, and `more` tokens of its own."""
    prefix = chained((b"%d" % i for i in range(chunks)), topic.encode())
    tokens = int(CHUNK) * chunks + more
    return RequestSpec(
        name, tokens, 0, LengthEstimate(output), prefix=prefix, prefix_chunk_tokens=CHUNK
    )


def test_what_was_sent_is_found_as_far_as_it_is_the_same() -> None:
    index = PrefixIndex(CONFIG)
    assert index.reserve(request("a", "x", 4)) == 0
    assert index.find(request("b", "x", 9)) == 4 * 64
    assert index.find(request("c", "x", 2)) == 2 * 64
    assert index.find(request("d", "y", 4)) == 0
    assert index.reserve(request("e", "x", 9)) == 4 * 64
    assert index.find(request("f", "x", 9)) == 9 * 64


def test_hits_are_whole_blocks_and_never_the_whole_prompt() -> None:
    index = PrefixIndex(CONFIG)
    index.reserve(request("a", "x", 2))
    assert index.find(request("b", "x", 2, more=0)) == 2 * 64 - 16
    odd = request("c", "x", 2)._replace(prefix_chunk_tokens=50.0)
    assert index.find(odd) == 96


def test_the_least_recently_used_goes_first_and_tails_before_heads() -> None:
    index = PrefixIndex(CONFIG)
    for name in "abc":  # 33 blocks each
        index.reserve(request(name, name, 8))
    assert [index.find(request("?", name, 8)) for name in "abc"] == [512, 512, 512]
    index.reserve(request("again", "a", 8))  # it needs one more block: the end of b's prompt
    index.reserve(request("d", "d", 2))
    found = [index.find(request("?", name, 8)) for name in "abcd"]
    assert found[0] == found[2] == 512
    assert found[3] == 128
    assert 512 - 4 * 64 <= found[1] < 512


def test_outputs_and_unnamed_remainders_take_blocks() -> None:
    short, long = PrefixIndex(CONFIG), PrefixIndex(CONFIG)
    for index, output in ((short, 6.0), (long, 1200.0)):
        index.reserve(request("a", "a", 8))
        index.reserve(request("b", "b", 2, output=output))
    assert short.find(request("?", "a", 8)) == 512
    assert long.find(request("?", "a", 8)) < 512


def turn(name: str, prompt: int, before: int = 0, chunks: int = 0) -> RequestSpec:
    """A prompt of `chunks` and ten tokens; a later turn has the answer's 40 and ten more."""
    spec = request(name, "chat", chunks, output=40.0)
    if not before:
        return spec._replace(turn=Turn(prompt))
    answered = spec.prompt_tokens + 40
    return spec._replace(prompt_tokens=answered + 10, turn=Turn(prompt, before, float(answered)))


@pytest.mark.parametrize(("chunks", "found"), [(0, 48), (1, 112)])
def test_a_turn_finds_the_answer_before_it(chunks: int, found: int) -> None:
    index = PrefixIndex(CONFIG)
    assert index.reserve(turn("a", 1, chunks=chunks)) == 0
    index.admitted("a", 0, 10)
    assert index.find(turn("?", 3, before=7, chunks=chunks)) == chunks * 64
    assert index.reserve(turn("b", 2, before=1, chunks=chunks)) == found
    assert index.believed("b") == found
    index.admitted("b", found, turn("b", 2, before=1, chunks=chunks).prompt_tokens)
    assert index.find(turn("?", 3, before=2, chunks=chunks)) == found
    for number in range(20):
        index.reserve(request(f"more-{number}", str(number), 6))
    assert index.find(turn("?", 3, before=2, chunks=chunks)) == 0


def test_a_turn_whose_prompt_before_never_ran_finds_nothing() -> None:
    index = PrefixIndex(CONFIG)
    index.reserve(turn("a", 1))
    index.ended("a", answered=False)
    assert index.find(turn("?", 2, before=1)) == 0
    assert index.chunks == []


def test_answers_that_engines_do_not_find_are_no_longer_expected() -> None:
    """As with models whose thoughts are left out of the next prompt. Prompts are still found."""
    index = PrefixIndex(CONFIG)
    for number in range(1, 13, 2):
        index.reserve(turn(f"a{number}", number, chunks=1))
        index.admitted(f"a{number}", 0, 74)
        index.reserve(turn(f"b{number}", number + 1, before=number, chunks=1))
        index.admitted(f"b{number}", 64, 124)
    told = index.journal_end
    index.reserve(turn("c", 13, chunks=1))
    assert index.find(turn("?", 14, before=13, chunks=1)) == 64
    assert index.chunks == list(request("?", "chat", 1).prefix)
    assert index.changes_since(told) == {}
    whole = index.changes_since(0)
    assert whole is not None
    assert [key for key, is_cached in whole.items() if is_cached] == index.chunks


def test_an_engine_that_finds_less_has_lost_what_is_older_too() -> None:
    index = PrefixIndex(CONFIG)
    for name in "abc":
        index.reserve(request(name, name, 6))
        index.admitted(name, 0, 394)
    assert index.reserve(request("again", "b", 6)) == 6 * 64
    index.admitted("again", 64, 394)
    assert index.find(request("?", "a", 6)) == 0  # used before b
    assert index.find(request("?", "b", 6)) == 6 * 64  # computed again
    assert index.find(request("?", "c", 6)) == 6 * 64


@pytest.mark.parametrize(("seen", "cached"), [(True, 300), (False, 0)])
def test_what_proves_nothing_changes_nothing(seen: bool, cached: int) -> None:
    """Hits close to the expected ones, and misses of what may not have been computed yet."""
    index = PrefixIndex(CONFIG)
    for name in "ab":
        index.reserve(request(name, name, 6))
        if seen:
            index.admitted(name, 0, 394)
    index.reserve(request("again", "b", 6))
    index.admitted("again", cached, 394)
    assert [index.find(request("?", name, 6)) for name in "ab"] == [384, 384]


def test_text_has_as_many_tokens_as_the_engine_counted() -> None:
    index = PrefixIndex(CONFIG)
    for name in "ab":
        index.reserve(request(name, name, 6))
        index.admitted(name, 0, 100)
    assert index.reserve(request("again", "b", 6)) == 384
    index.admitted("again", 96, 100)  # all of a prompt with a quarter of the estimated tokens
    assert index.find(request("?", "a", 6)) == 384


def test_who_never_ran_has_brought_nothing() -> None:
    index = PrefixIndex(CONFIG)
    index.reserve(request("a", "x", 2))
    index.admitted("a", 0, 138)
    index.reserve(request("b", "x", 5))
    index.reserve(request("c", "x", 3))
    assert index.believed("c") == 3 * 64
    index.ended("b", answered=False)
    assert index.find(request("?", "x", 5)) == 3 * 64  # c computes these, if it runs
    index.ended("c", answered=True)
    assert index.pending == []
    index.ended("a", answered=False)
    assert index.find(request("?", "x", 5)) == 3 * 64


def test_it_is_bounded_and_never_lacks_what_is_before_a_chunk_it_has() -> None:
    draws, index = Random(1), PrefixIndex(CONFIG)
    for number in range(3000):
        topic = str(draws.randint(0, 20))
        spec = request(f"r{number}", topic, draws.randint(0, 12), draws.randint(0, 63) + 1)
        before = draws.randint(0, number)
        spec = spec._replace(turn=Turn(number, before, float(draws.randint(0, 2000))))
        index.reserve(spec)
        draw = draws.random()
        if draw < 0.6:
            index.admitted(spec.request_id, draws.randint(0, spec.prompt_tokens), 100)
        elif draw < 0.8:
            index.ended(spec.request_id, answered=draw < 0.7)
        longest = request("?", str(draws.randint(0, 20)), 12).prefix
        there = [key in index._chunks for key in longest]
        assert there == sorted(there, reverse=True)
        assert index._blocks == pytest.approx(sum(c.blocks for c in index._chunks.values()))
        assert index._blocks <= CONFIG.total_blocks
    for number in range(MAX_PENDING + 10):
        index.reserve(request(f"s{number}", "x", 1))
    assert len(index.pending) == MAX_PENDING
