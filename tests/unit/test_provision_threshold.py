"""`relief` and `preempt`: one more each time the strategy's own latency reaches the threshold."""

import pytest

from foretell.provision import Strategy
from foretell.provision.strategies import make_strategy
from tests.unit.provision_cases import facts, plan, ready

OWN = {"relief": "worst_e2e_s", "preempt": "worst_predicted_e2e_s"}


def wanted(strategy: Strategy, now_s: float, latency_s: float) -> int:
    told = facts(now_s, ready("a"), **{OWN[strategy.name]: latency_s})
    return strategy.propose(told, plan(1, maximum=3)).instances


@pytest.mark.parametrize("name", OWN)
def test_one_more_at_the_threshold_and_a_pause_between_two(name: str) -> None:
    strategy = make_strategy(name, threshold_s=70.0, pause_s=10.0)
    latencies = [(0.0, 69.0), (1.0, 70.0), (5.0, 90.0), (11.0, 90.0), (30.0, 99.0)]
    assert [wanted(strategy, *each) for each in latencies] == [1, 2, 2, 3, 3]
    assert wanted(strategy, 4000.0, 0.0) == 3  # it never proposes one less


@pytest.mark.parametrize("name", OWN)
def test_with_a_calm_ratio_one_less_after_a_calm_time(name: str) -> None:
    strategy = make_strategy(name, threshold_s=70.0, calm_ratio=0.5, calm_s=60.0)
    latencies = [(0.0, 70.0), (50.0, 35.0), (100.0, 34.0), (110.0, 34.0), (111.0, 0.0)]
    assert [wanted(strategy, *each) for each in latencies] == [2, 2, 2, 1, 1]


@pytest.mark.parametrize(("name", "other"), [("relief", "preempt"), ("preempt", "relief")])
def test_the_other_latency_does_not_count(name: str, other: str) -> None:
    told = facts(0.0, ready("a"), **{OWN[other]: 500.0})
    assert make_strategy(name).propose(told, plan(1)).instances == 1
    with pytest.raises(ValueError, match="positive"):
        make_strategy(name, threshold_s=0.0)
