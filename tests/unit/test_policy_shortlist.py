"""Whom to ask, by what a scheduler knows without asking."""

from collections import Counter
from random import Random

import pytest

from foretell.model import Load
from foretell.policy.shortlist import STALE_S, Shortlist

NAMES = [f"engine-{i}" for i in range(40)]


def load(requests: int) -> Load:
    return Load(
        running=requests,
        waiting=0,
        reserved=0,
        used_blocks=0,
        total_blocks=100,
        waiting_prefill_blocks=0,
        max_num_seqs=48,
    )


def pick(
    shortlist: Shortlist[str],
    outstanding: dict[str, int] | None = None,
    *,
    seed: int = 1,
    now_s: float = 0.0,
) -> list[str]:
    own = outstanding or {}
    return list(shortlist.pick(NAMES, lambda name: own.get(name, 0), Random(seed).random, now_s))


def all_drawn(candidates: int) -> Shortlist[str]:
    """A shortlist that looks at every instance."""
    return Shortlist(candidates, spread=len(NAMES))


@pytest.mark.parametrize("candidates", [0, len(NAMES), 100])
def test_all_are_asked_where_they_are_few_or_nobody_set_a_limit(candidates: int) -> None:
    assert pick(Shortlist(candidates)) == NAMES


@pytest.mark.parametrize("candidates", [1, 2, 7, 39])
def test_as_many_as_wanted_and_none_twice(candidates: int) -> None:
    for seed in range(50):
        found = pick(Shortlist(candidates), seed=seed)
        assert len(found) == len(set(found)) == candidates
        assert set(found) <= set(NAMES)


def test_without_knowledge_every_instance_is_as_likely() -> None:
    shortlist, draws = Shortlist[str](4), Random(7)
    found: Counter[str] = Counter()
    for _ in range(4000):
        found.update(shortlist.pick(NAMES, lambda name: 0, draws.random, 0.0))
    assert set(found) == set(NAMES)
    assert all(300 < count < 500 for count in found.values())  # 400 expected, deviation 19


def test_fewest_own_requests_come_first_before_anything_was_heard() -> None:
    outstanding = dict.fromkeys(NAMES, 5) | {"engine-7": 1, "engine-21": 0}
    assert pick(all_drawn(2), outstanding) == ["engine-21", "engine-7"]


def test_reported_loads_count_and_own_requests_since() -> None:
    shortlist = all_drawn(2)
    for name in NAMES:
        shortlist.learn(name, load(10), 0, 0.0)
    shortlist.learn("engine-3", load(2), 0, 0.0)
    shortlist.learn("engine-4", load(4), 3, 0.0)
    assert pick(shortlist, {"engine-4": 3}) == ["engine-3", "engine-4"]
    assert pick(shortlist, {"engine-3": 3, "engine-4": 3}) == ["engine-4", "engine-3"]
    assert pick(shortlist, {"engine-4": 1}) == ["engine-3", "engine-4"]  # two have ended: 2 and 2


def test_an_old_report_says_nothing() -> None:
    shortlist = all_drawn(1)
    for name in NAMES:
        shortlist.learn(name, load(10), 0, 100.0)
    shortlist.learn("engine-3", load(2), 0, 100.0 - STALE_S)
    assert pick(shortlist, now_s=100.0) == ["engine-3"]
    assert pick(shortlist, {"engine-3": 1}, now_s=100.1) != ["engine-3"]


def test_the_silent_are_neither_sought_nor_shunned() -> None:
    shortlist = all_drawn(len(NAMES) - 1)
    for index, name in enumerate(NAMES[1:]):
        shortlist.learn(name, load(index), 1, 0.0)
    own = dict.fromkeys(NAMES, 1)
    assert pick(shortlist, own).index(NAMES[0]) < 3  # new, and for all one knows it is idle
    place = pick(shortlist, own).index(NAMES[0])  # it was asked, and gave no answer
    assert 10 < place < 30  # about the median of the others
    assert pick(shortlist, own | {NAMES[0]: 0}).index(NAMES[0]) < place


def test_what_is_kept_is_bounded() -> None:
    shortlist = Shortlist[str](2)
    for index in range(10_000):
        shortlist.learn(f"gone-{index}", load(1), 0, 0.0)
        pick(shortlist)
    assert len(shortlist._heard) <= 2 * len(NAMES) + 65
