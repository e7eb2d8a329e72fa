"""`static`: always the same number."""

from foretell.provision.strategies import make_strategy
from tests.unit.provision_cases import facts, plan, ready


def test_it_is_the_maximum_unless_told() -> None:
    load = facts(0.0, ready("a", 10, 90))
    assert make_strategy("static").propose(load, plan(1)).instances == 8
    assert make_strategy("static", instances=3).propose(load, plan(1)).instances == 3
