"""What holds for every strategy: bounds, cool-down, survivors, and faults."""

from dataclasses import replace

import pytest

from foretell.provision import (
    Facts,
    Proposal,
    ProvisionConfig,
    Provisioner,
    StrategyPlan,
)
from foretell.provision.strategies import STRATEGIES, make_strategy
from tests.unit.provision_cases import draining, facts, ready, warming

CONFIG = ProvisionConfig(minimum=1, maximum=5, cool_down_s=100.0, cold_start_s=60.0, give_up_s=200)


class Wanting:
    """Proposes what the test sets."""

    name = "wanting"

    def __init__(self, instances: int) -> None:
        self.instances = instances
        self.plans: list[StrategyPlan] = []

    def propose(self, facts: Facts, plan: StrategyPlan) -> Proposal:
        self.plans.append(plan)
        return Proposal(self.instances, "the test", 0.9)


def core(instances: int, **config: object) -> Provisioner:
    return Provisioner(Wanting(instances), replace(CONFIG, **config))  # type: ignore[arg-type]


def test_starts_what_is_missing_and_counts_what_is_warming() -> None:
    decision = core(4).decide(facts(0.0, ready("a"), warming("b"), age_s=2.0))
    assert (decision.desired, decision.start, decision.because) == (4, 2, "strategy")
    assert (decision.confidence, decision.age_s, decision.why) == (0.9, 2.0, "the test")


@pytest.mark.parametrize(("wanted", "desired"), [(9, 5), (0, 1)])
def test_bounds_hold(wanted: int, desired: int) -> None:
    decision = core(wanted, cool_down_s=0.0).decide(facts(0.0, ready("a")))
    assert (decision.desired, decision.because) == (desired, "bounds")


def test_a_step_down_waits_until_nothing_more_was_wanted_for_the_cool_down() -> None:
    one = core(1)
    three = ready("a", 3), ready("b", 1), ready("c", 2)
    found = [one.decide(facts(float(now_s), *three)) for now_s in (0, 50, 100, 101)]
    assert [d.because for d in found] == ["cool_down", "cool_down", "cool_down", "strategy"]
    assert found[-1].drain == ("b", "c")  # those with the fewest requests


def test_the_survivors_must_hold_what_is_in_progress() -> None:
    busy = ready("a", 10, 2), ready("b", 4), ready("c", 5)  # 21 of 30 seats, 8 usable on each
    decision = core(1, cool_down_s=0.0).decide(facts(1.0, *busy, draining("d", 9)))
    assert (decision.desired, decision.because, decision.drain) == (3, "survivors", ())
    full = ready("a", kv=0.9), ready("b", kv=0.6), ready("c")
    decision = core(1, cool_down_s=0.0).decide(facts(1.0, *full))
    assert (decision.desired, decision.drain) == (2, ("a",))


def test_what_is_warming_is_stopped_before_what_is_ready_is_drained() -> None:
    decision = core(1, cool_down_s=0.0).decide(
        facts(90.0, ready("a"), ready("b"), warming("c", 10.0), warming("d", 80.0))
    )
    assert (decision.stop, decision.drain) == (("d", "c"), ("a",))


def test_what_still_drains_is_taken_back_before_anything_is_started() -> None:
    seen = facts(1.0, ready("a"), draining("d", 2), draining("e", 7), draining("f", 4))
    some = core(3).decide(seen)
    assert (some.take_back, some.start, some.drain) == (("e", "f"), 0, ())  # the busiest
    more = core(5).decide(seen)
    assert (more.take_back, more.start) == (("e", "f", "d"), 1)
    assert core(1).decide(seen).take_back == ()


def test_old_numbers_decide_nothing() -> None:
    decision = core(5).decide(facts(0.0, ready("a"), age_s=31.0))
    assert (decision.desired, decision.because, decision.start) == (1, "stale", 0)
    assert "31 s" in decision.why


def test_cold_starts_are_learnt_as_they_are_measured() -> None:
    one = core(2)
    one.decide(facts(0.0, ready("a")))
    one.decide(facts(5.0, ready("a"), warming("b", 5.0)))
    one.decide(facts(50.0, ready("a"), replace(ready("b"), since_s=45.0)))
    one.decide(facts(55.0, ready("a"), replace(ready("b"), since_s=45.0)))
    strategy = one.strategy
    assert isinstance(strategy, Wanting)
    assert [each.cold_start_s for each in strategy.plans] == [60.0, 60.0, 40.0, 40.0]


def test_an_instance_that_never_gets_ready_is_given_up_and_does_not_block() -> None:
    one = core(2)
    assert one.decide(facts(0.0, ready("a"))).start == 1
    late = one.decide(facts(201.0, ready("a"), warming("b", 0.0)))
    assert (late.stop, late.start, late.because) == (("b",), 0, "stuck")
    assert one.given_up_total == 1
    assert one.decide(facts(230.0, ready("a"))).because == "stuck"
    assert one.decide(facts(262.0, ready("a"))).start == 1  # after one cold start
    again = one.decide(facts(463.0, ready("a"), warming("c", 262.0)))
    assert again.stop == ("c",)
    assert one.decide(facts(463.0 + 119.0, ready("a"))).start == 0  # the pause has doubled by now
    assert one.decide(facts(463.0 + 120.0, ready("a"))).start == 1


def test_the_number_that_a_person_sets_is_left_alone_for_a_while() -> None:
    one = core(2)
    two = ready("a"), ready("b")
    assert one.decide(facts(0.0, *two, asked_for=2)).because == "strategy"
    decision = one.decide(facts(10.0, *two, asked_for=4))
    assert (decision.desired, decision.because, decision.start) == (4, "manual", 2)
    assert one.decide(facts(1800.0, *two, asked_for=4)).because == "manual"
    assert one.decide(facts(1811.0, *two, asked_for=4)).desired == 2


def test_an_own_order_that_fails_or_is_done_in_part_is_no_change_by_a_person() -> None:
    one = core(4)
    two = ready("a"), ready("b")
    for now_s, told in enumerate((2, 2, 3, 4)):
        assert one.decide(facts(float(now_s), *two, asked_for=told)).because == "strategy"
    assert one.decide(facts(5.0, *two, asked_for=3)).because == "manual"


def test_an_instance_that_was_given_up_is_no_change_by_a_person() -> None:
    one = core(2)
    one.decide(facts(0.0, ready("a"), warming("b", 0.0), asked_for=2))
    assert one.decide(facts(201.0, ready("a"), warming("b", 0.0), asked_for=2)).stop == ("b",)
    assert one.decide(facts(202.0, ready("a"), asked_for=1)).because == "stuck"
    assert one.decide(facts(262.0, ready("a"), asked_for=1)).start == 1
    assert one.decide(facts(263.0, ready("a"), asked_for=0)).because == "manual"


def test_a_held_request_starts_an_instance_from_nothing() -> None:
    one = core(0, minimum=0)
    assert one.decide(facts(0.0)).start == 0
    decision = one.decide(facts(1.0, held=3))
    assert (decision.start, decision.because) == (1, "held")


def test_values_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="minimum <= maximum"):
        ProvisionConfig(minimum=3, maximum=2)
    with pytest.raises(ValueError, match="cool_down_s"):
        ProvisionConfig(cool_down_s=-1.0)


def test_strategies_are_found_by_their_files() -> None:
    assert {"static", "relief", "preempt", "target", "saturation"} <= set(STRATEGIES)
    with pytest.raises(ValueError, match=r"unknown strategy 'more'; choose one of .*static"):
        make_strategy("more")
    with pytest.raises(ValueError, match="strategy 'static' has no parameter 'count'; it has inst"):
        make_strategy("static", count=1)
