"""What the provisioning benchmarks run: traffic, and one small case."""

from itertools import pairwise

import pytest

from bench.provisioning.reproduce_block import Case, run
from bench.provisioning.traffic import WINDOWS, Day, Rates, arrivals

LENGTHS = [(100, 50), (300, 200), (50, 400)]


def week(rate: float, cv: float) -> Rates:
    """Two clients whose rate doubles in the afternoons."""
    return {
        window: {1: (rate * (1 + (window % WINDOWS >= 72)), cv), 2: (rate, cv)}
        for window in range(7 * WINDOWS)
    }


def test_a_day_has_the_rate_and_the_tides_that_were_asked_for() -> None:
    day = Day(2, hours=2.0, mean_qps=4.0, bursts=0)
    found = arrivals(week(100.0, 1.0), LENGTHS, day, seed=1)
    times = [a.t_s for a in found]
    assert len(found) == pytest.approx(4.0 * 7200, rel=0.05)
    assert all(a <= b for a, b in pairwise(times))
    assert times[-1] < 7200.0
    morning = sum(t < 3600.0 for t in times)
    assert (len(times) - morning) / morning == pytest.approx(1.5, rel=0.1)


def test_bursts_add_requests_and_a_day_is_the_same_again() -> None:
    calm, wild = (Day(2, 2.0, 4.0, bursts) for bursts in (0, 8))
    more = arrivals(week(100.0, 1.0), LENGTHS, wild, seed=1)
    assert len(more) > 1.05 * len(arrivals(week(100.0, 1.0), LENGTHS, calm, seed=1))
    assert more == arrivals(week(100.0, 1.0), LENGTHS, wild, seed=1)


def test_a_small_run_adds_instances_and_says_what_came_of_it() -> None:
    lengths = [(400, 400)]
    static, relief = (run(Case(name, 5.0, 1, 400), lengths) for name in ("static", "relief"))
    assert (static["instances"], static["over"]) == (10, 0)
    assert static["e2e_p99_s"] < relief["e2e_p99_s"]
    assert 6 <= relief["instances"] <= 10
    assert relief["instance_hours"] > 0
