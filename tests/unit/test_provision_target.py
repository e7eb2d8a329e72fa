"""`target`: the formula of the Horizontal Pod Autoscaler."""

import pytest

from foretell.provision import Strategy
from foretell.provision.strategies import make_strategy
from tests.unit.provision_cases import draining, facts, plan, ready, warming


def wanted(strategy: Strategy, requests: int, instances: int = 2) -> int:
    share = [requests // instances + (i < requests % instances) for i in range(instances)]
    members = [ready(f"e{i}", running) for i, running in enumerate(share)]
    return strategy.propose(facts(0.0, *members, draining("d", 99)), plan(instances)).instances


def test_requests_in_progress_over_the_target_beyond_the_tolerance() -> None:
    strategy = make_strategy("target", requests=10.0)
    assert [wanted(strategy, n) for n in (21, 23, 40, 41, 18, 17, 10)] == [2, 3, 4, 5, 2, 2, 1]


def test_what_is_warming_counts_where_nothing_is_ready() -> None:
    strategy = make_strategy("target", requests=10.0)
    assert strategy.propose(facts(0.0, warming("a"), held=25), plan(1)).instances == 3
    assert strategy.propose(facts(0.0, warming("a")), plan(1)).instances == 1
    with pytest.raises(ValueError, match="positive"):
        make_strategy("target", requests=0)
