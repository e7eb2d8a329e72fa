"""Batches that must end in time set a lower bound for the number of instances."""

from dataclasses import replace

import pytest

from foretell.provision import ProvisionConfig, Provisioner
from foretell.provision.batches import BatchDemand, Due
from foretell.provision.strategies import make_strategy
from tests.unit.provision_cases import facts, ready

COLD_START_S = 60.0


@pytest.mark.parametrize(
    ("within_s", "left_s", "needed"),
    [
        (1000.0, None, 1),  # nothing is known: one instance must begin
        (1000.0, 1000.0, 4),  # just in time with the four present ones
        (1000.0, 501.0, 3),
        (1000.0, 10.0, 1),
        (1060.0, 2060.0, 8),  # twice as many from the end of a cold start on
        (1000.0, 1010.0, 5),
        (50.0, 100.0, 4),  # a further one would not be ready in time
        (-1.0, 100.0, 1),  # it is late already, and no more are started for it
    ],
)
def test_as_many_as_end_it_in_time(within_s: float, left_s: float | None, needed: int) -> None:
    assert BatchDemand(4, [Due(within_s, left_s)]).floor(COLD_START_S) == needed


def test_the_batch_that_needs_most_decides_and_none_needs_nothing() -> None:
    due = [Due(1000.0, 200.0), Due(2000.0, 1900.0), Due(9000.0, 2000.0)]
    assert BatchDemand(2, due).floor(COLD_START_S) == 2
    assert BatchDemand(3).floor(COLD_START_S) == 0
    assert BatchDemand(0, due).floor(COLD_START_S) == 1  # from zero, before anything is known


def test_it_is_a_floor_within_the_bounds() -> None:
    config = ProvisionConfig(minimum=0, maximum=3, cool_down_s=0.0, cold_start_s=COLD_START_S)
    core = Provisioner(make_strategy("target", requests=10.0), config)
    seen = facts(0.0, ready("a"), ready("b"))
    assert core.decide(seen).desired == 0
    batches = BatchDemand(2, [Due(1000.0, 900.0)])
    held = core.decide(replace(seen, now_s=1.0, batches=batches))
    assert (held.desired, held.because, held.drain) == (2, "batches", ())
    assert "2 for batches to end in time" in held.why
    late = BatchDemand(2, [Due(1000.0, 5000.0)])
    more = core.decide(replace(seen, now_s=2.0, batches=late))
    assert (more.desired, more.because, more.start) == (3, "bounds", 1)
    busy = facts(3.0, ready("a", 20), ready("b", 5), batches=BatchDemand(1, [Due(100.0, 50.0)]))
    assert core.decide(busy).because == "strategy"  # it wants more anyway
