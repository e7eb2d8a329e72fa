"""Streams of conversations, and the hashes of their prompts' blocks."""

from itertools import pairwise
from random import Random

import pytest

from foretell.workload import Arrival, Conversations, conversations
from foretell.workload.stream import PREFIX_BLOCK_TOKENS

KIND = Conversations(turns=4.0, systems=2, pause_s=5.0, most_tokens=6000)


def test_conversations_are_a_steady_stream_that_can_be_repeated() -> None:
    found = conversations(400.0, 5.0, KIND, Random(1))
    assert found == conversations(400.0, 5.0, KIND, Random(1))
    times_s = [arrival.t_s for arrival in found]
    assert times_s == sorted(times_s)
    assert times_s[0] >= 0.0
    assert times_s[-1] < 400.0
    halves = [sum(t_s < 200.0 for t_s in times_s), sum(t_s >= 200.0 for t_s in times_s)]
    assert halves[0] == pytest.approx(halves[1], rel=0.15)
    assert len({arrival.request_id for arrival in found}) == len(found)


def test_every_turn_repeats_what_was_said_before() -> None:
    found = conversations(400.0, 5.0, KIND, Random(1))
    by_conversation: dict[int, list[Arrival]] = {}
    for arrival in found:
        assert arrival.prompt_tokens + arrival.output_tokens <= 6000
        assert len(arrival.prefix) == -(-arrival.prompt_tokens // PREFIX_BLOCK_TOKENS)
        by_conversation.setdefault(arrival.prefix[2], []).append(arrival)
    assert {arrival.prefix[:2] for arrival in found} == {(-1, -2), (-3, -4)}
    assert max(len(turns) for turns in by_conversation.values()) > 4
    for turns in by_conversation.values():
        for earlier, later in pairwise(turns):
            assert later.prefix[: len(earlier.prefix)] == earlier.prefix
            assert later.prompt_tokens > earlier.prompt_tokens + earlier.output_tokens
            assert later.t_s > earlier.t_s


def test_conversations_that_cannot_be_are_refused() -> None:
    for wrong in ({"turns": 0.5}, {"systems": 0}, {"system_tokens": 100}):
        with pytest.raises(ValueError, match="need"):
            Conversations(**wrong)  # type: ignore[arg-type]


def test_only_whole_blocks_have_hashes_and_each_stands_for_all_before_it() -> None:
    one = Arrival(0.0, 1500, 1, "a", (1, 2, 3))
    hashes, tokens = one.hashed_prefix()
    assert (len(hashes), tokens) == (2, 512.0)
    other = Arrival(0.0, 1536, 1, "b", (9, 2, 3)).hashed_prefix()[0]
    assert len(other) == 3
    assert not set(hashes) & set(other)
