"""`saturation`: the rules of llm-d."""

from foretell.provision import InstanceFacts, Strategy
from foretell.provision.strategies import make_strategy
from tests.unit.provision_cases import facts, plan, ready, warming


def wanted(strategy: Strategy, now_s: float, *members: InstanceFacts) -> int:
    return strategy.propose(facts(now_s, *members), plan(len(members))).instances


def test_one_more_where_the_calm_ones_have_too_little_spare() -> None:
    def fresh(*members: InstanceFacts) -> int:
        return wanted(make_strategy("saturation"), 0.0, *members)

    assert fresh(ready("a", kv=0.72), ready("b", kv=0.72)) == 3
    assert fresh(ready("a", waiting=3), ready("b", waiting=2)) == 3
    assert fresh(ready("a", kv=0.99), ready("b", kv=0.6)) == 2  # only b is calm, with spare room
    assert fresh(ready("a", waiting=9), ready("b", kv=0.85)) == 3  # neither is calm


def test_one_at_a_time_and_none_while_one_is_warming() -> None:
    strategy = make_strategy("saturation")
    assert wanted(strategy, 0.0, ready("a", waiting=99)) == 2
    assert wanted(strategy, 5.0, ready("a", waiting=99), warming("b")) == 2
    assert wanted(strategy, 70.0, ready("a", waiting=99), ready("b", waiting=9)) == 3


def test_one_less_where_the_others_keep_enough_and_peaks_last_a_minute() -> None:
    strategy = make_strategy("saturation")
    assert wanted(strategy, 0.0, ready("a", kv=0.5), ready("b", kv=0.5)) == 2
    assert wanted(strategy, 59.0, ready("a", kv=0.3), ready("b", kv=0.3)) == 2
    assert wanted(strategy, 61.0, ready("a", kv=0.3), ready("b", kv=0.3)) == 1
    assert wanted(strategy, 0.0, ready("a")) == 1  # the last one stays
