"""Expected arrivals, from past arrivals."""

from random import Random

import pytest

from foretell.engine.expected import RecentArrivals, still_expected
from foretell.workload import poisson

START = 1e9


def after(gap_s: float, count: int, memory_s: float = 20.0) -> RecentArrivals:
    arrivals = RecentArrivals(memory_s)
    for i in range(count):
        arrivals.note(100, 50.0, START + i * gap_s)
    return arrivals


def test_nothing_is_expected_before_anything_came() -> None:
    assert RecentArrivals().rate_per_s(START) == 0.0
    assert RecentArrivals().expected(START, START + 60.0, 10) is None


@pytest.mark.parametrize("rate", [0.5, 5.0, 50.0])
def test_a_steady_rate_is_found(rate: float) -> None:
    arrivals = RecentArrivals()
    now = START
    for t in poisson(rate, Random(1)):
        now = START + t
        if t > 200.0:
            break
        arrivals.note(100, 50.0, now)
    # Of an exponential window of 20 s: as uncertain as a count over 40 s.
    assert arrivals.rate_per_s(now) == pytest.approx(rate, rel=3 / (40 * rate) ** 0.5)


def test_the_first_requests_are_no_rush() -> None:
    assert after(1e-3, 1).rate_per_s(START) < 1.0
    assert after(1.0, 30).rate_per_s(START + 29.0) == pytest.approx(1.0, rel=0.2)


def test_a_rate_fades() -> None:
    arrivals = after(0.1, 1000, memory_s=5.0)
    end = START + 100.0
    busy = arrivals.rate_per_s(end)
    assert busy == pytest.approx(10.0, rel=0.05)
    assert arrivals.rate_per_s(end + 5.0) == pytest.approx(busy / 2.718, rel=0.01)
    assert arrivals.expected(end + 500.0, end + 560.0, 10) is None


def test_expected_requests_have_the_mean_size_and_even_gaps() -> None:
    arrivals = RecentArrivals()
    for i in range(100):
        arrivals.note(100 + 200 * (i % 2), 10.0 + 20.0 * (i % 2), START + 0.5 * i)
    now = START + 50.0
    found = arrivals.expected(now, now + 10.0, 1000)
    rate = arrivals.rate_per_s(now)
    assert found
    assert found.sequences == round(10.0 * rate)
    assert found.every_s == pytest.approx(1 / rate, rel=1e-4)
    assert found.at_s - now == pytest.approx(0.5 / rate, rel=1e-4)
    assert 190 <= found.prompt <= 210
    assert 19 <= found.max_tokens <= 21
    arrivals.note(200, 20.0, now, targets_s=(1.0, 0.05))
    few = arrivals.expected(now, now + 10.0, 3)
    assert few
    assert (few.ttft_target_s, few.tpot_target_s) == (1.0, 0.05)  # the latest target counts
    assert few.sequences == 3


def test_time_never_runs_backwards() -> None:
    arrivals = after(0.1, 100)
    before = arrivals.rate_per_s(START + 10.0)
    arrivals.note(100, 50.0, START)  # an old arrival, noted late
    assert arrivals.rate_per_s(START + 10.0) > before
    with pytest.raises(ValueError, match="memory_s"):
        RecentArrivals(0.0)


def test_what_was_expected_before_now_is_expected_no_more() -> None:
    row = after(1.0, 30).expected(START + 29.0, START + 39.0, 64)
    assert row is not None
    assert still_expected([row], row.at_s) == [row]
    (left,) = still_expected([row], row.at_s + 2.5 * row.every_s)
    assert left.sequences == row.sequences - 3
    assert left.at_s == pytest.approx(row.at_s + 3 * row.every_s)
    assert still_expected([row], row.at_s + row.sequences * row.every_s) == []
    at_once = row._replace(every_s=0.0)
    assert still_expected([at_once], row.at_s) == [at_once]
    assert still_expected([at_once], row.at_s + 1.0) == []
