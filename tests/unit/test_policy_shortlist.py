"""Which instances to ask, by what a scheduler knows without asking."""

from collections import Counter
from random import Random

import pytest

from foretell.model import Load
from foretell.placement.candidates import Candidates
from foretell.placement.config import STALE_LOAD_S
from foretell.placement.instances import Instances
from foretell.policy.shortlist import Known, shortlist

NAMES = [f"engine-{i}" for i in range(40)]
MODELS = frozenset({"m"})
IDLE = Known(0, 0)


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


def pick(wanted: int, known: dict[str, Known] | None = None, seed: int = 1) -> list[str]:
    """The shortlist from all names; instances without an entry in `known` are idle."""
    found = known or {}
    return list(
        shortlist(
            NAMES, wanted, lambda name: found.get(name, IDLE), Random(seed).random, len(NAMES)
        )
    )


def test_all_are_asked_where_they_are_few() -> None:
    assert pick(len(NAMES)) == pick(100) == NAMES


@pytest.mark.parametrize("wanted", [1, 2, 7, 39])
def test_as_many_as_wanted_and_none_twice(wanted: int) -> None:
    for seed in range(50):
        found = shortlist(NAMES, wanted, lambda _: IDLE, Random(seed).random)
        assert len(found) == len(set(found)) == wanted
        assert set(found) <= set(NAMES)


def test_without_knowledge_every_instance_is_as_likely() -> None:
    draws, found = Random(7), Counter[str]()
    for _ in range(4000):
        found.update(shortlist(NAMES, 4, lambda _: IDLE, draws.random))
    assert set(found) == set(NAMES)
    assert all(300 < count < 500 for count in found.values())  # 400 expected, deviation 19


def test_the_fewest_requests_come_first() -> None:
    known = dict.fromkeys(NAMES, Known(0, 10))
    known |= {"engine-3": Known(0, 2), "engine-4": Known(3, 4)}
    assert pick(2, known) == ["engine-3", "engine-4"]


def test_the_silent_are_neither_sought_nor_shunned() -> None:
    known = {name: Known(1, index) for index, name in enumerate(NAMES[1:])}
    place = pick(39, known | {NAMES[0]: Known(1, None)}).index(NAMES[0])
    assert 10 < place < 30  # about the median of the others
    assert pick(39, known | {NAMES[0]: Known(0, None)}).index(NAMES[0]) < place


def predictors(most: int, loads: dict[str, int]) -> tuple[Instances, Candidates]:
    """All instances are up, and these have reported their loads at 0 s."""
    instances = Instances()
    for name in NAMES:
        instances.put_up(name, MODELS, 0.0)
    found = Candidates(instances, most, Random(1).random)
    for name, count in loads.items():
        instances.heard(instances[name], load(count), 0.0)
    return instances, found


def test_an_old_load_says_nothing() -> None:
    instances, _ = predictors(0, {"engine-3": 2})
    assert instances["engine-3"].recent_load(STALE_LOAD_S) == load(2)
    assert instances["engine-3"].recent_load(STALE_LOAD_S + 0.1) is None


def test_requests_that_were_sent_since_a_load_was_told_count() -> None:
    instances, found = predictors(39, dict.fromkeys(NAMES, 3))
    leases = [instances["engine-3"].lease(0.0) for _ in range(2)]
    assert instances["engine-3"].recent_load(1.0) == load(3)._replace(reserved=2)
    assert instances["engine-3"].recent_requests(1.0) == 5
    assert "engine-3" not in found.pick(NAMES, 0, 1.0)
    instances.heard(instances["engine-3"], load(5), 1.0)
    for lease in leases:
        lease.give_back()
    assert instances["engine-3"].recent_load(2.0) == load(3)


def test_who_has_never_been_asked_is_taken_for_an_idle_one() -> None:
    _, found = predictors(39, {name: 1 + index for index, name in enumerate(NAMES[1:])})
    assert found.pick(NAMES, 0, 1.0)[0] == NAMES[0]
    assert 10 < list(found.pick(NAMES, 0, 1.0)).index(NAMES[0]) < 30  # it did not answer


def test_requests_that_leave_were_first_on_their_way_then_waiting_then_running() -> None:
    full = Load(5, 2, 1, 0, 100, 0, 48)
    assert full.with_more(3) == full._replace(reserved=4)
    left = [full.with_more(-gone)[:3] for gone in (0, 1, 2, 4, 9)]
    assert left == [(5, 2, 1), (5, 2, 0), (5, 1, 0), (4, 0, 0), (0, 0, 0)]
