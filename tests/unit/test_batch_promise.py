"""When a batch will be done: known batches of known requests, and simulated ones of unknown."""

import random
from math import inf, isclose

import pytest

from foretell.batch.promise import CONFIDENCE, Correction, Lengths, Pace, seconds_left


def pace_of(*rates: float) -> Pace:
    pace = Pace()
    for rate in rates:
        pace.add(rate, 1.0)
    return pace


def lengths_of(*tokens: int) -> Lengths:
    found = Lengths()
    for each in tokens:
        found = found.with_more(each)
    return found


def test_requests_alike_at_an_even_pace() -> None:
    pace, lengths = pace_of(*[50.0] * 5), lengths_of(*[100] * 20)
    assert isclose(seconds_left(10, 0, lengths, pace), 20.0)
    assert isclose(seconds_left(10, 500, lengths, pace), 30.0), "others come first"
    assert seconds_left(0, 500, lengths, pace) == 0.0


def test_what_varies_makes_the_promise_later() -> None:
    even, lengths = pace_of(*[50.0] * 5), lengths_of(*[100] * 20)
    least = seconds_left(10, 0, lengths, even)
    assert seconds_left(10, 0, lengths_of(*[50, 150] * 10), even) > least
    assert seconds_left(10, 0, lengths, pace_of(40, 60, 40, 60)) > least
    assert seconds_left(10, 0, lengths, pace_of(1, 99, 1, 99), 0.999) < inf


def test_nothing_is_promised_while_too_little_is_known() -> None:
    assert seconds_left(10, 0, lengths_of(100), pace_of(50, 50, 50)) == inf
    assert seconds_left(10, 0, lengths_of(*[100] * 20), pace_of(50)) == inf
    assert seconds_left(10, 0, lengths_of(*[100] * 20), pace_of(0, 0, 0)) == inf


@pytest.mark.parametrize("drift", [0.0, 0.1])
def test_promises_of_simulated_batches_are_kept_at_least_as_often_as_said(drift: float) -> None:
    """Log-normal lengths, and a pace that wanders as online load does."""
    rng = random.Random(7)
    kept, rounds = 0, 300
    for _ in range(rounds):
        requests = [max(1, round(rng.lognormvariate(5, 1))) for _ in range(rng.randint(100, 600))]
        known = rng.randint(20, 60)
        level, pace = 0.0, Pace()

        def rate() -> float:
            nonlocal level
            level = 0.9 * level + drift * rng.gauss(0, 1)
            return 400.0 * (1.0 + 0.1 * rng.gauss(0, 1)) * max(0.2, 1.0 + level)

        for _ in range(30):
            pace.add(rate(), 1.0)
        promised_s = seconds_left(len(requests) - known, 0, lengths_of(*requests[:known]), pace)
        work, took_s = float(sum(requests[known:])), 0
        while work > 0:
            work -= rate()
            took_s += 1
        kept += took_s <= promised_s + 1
    assert kept / rounds >= CONFIDENCE - 0.04


@pytest.mark.parametrize("bias", [0.3, 1.0, 2.0])
def test_corrected_promises_are_kept_as_often_as_said(bias: float) -> None:
    rng = random.Random(f"{bias}")
    kept = []
    for _ in range(30):
        correction = Correction()
        for number in range(60):
            foretold_s = rng.uniform(5.0, 500.0)
            took_s = foretold_s * bias * rng.lognormvariate(0.0, 0.5)
            if number >= 10:
                kept.append(took_s <= correction.ratio * foretold_s)
            correction.learn(foretold_s, took_s)
    assert sum(kept) / len(kept) == pytest.approx(CONFIDENCE, abs=0.03)


def test_nothing_is_corrected_while_too_few_batches_have_ended() -> None:
    correction = Correction()
    for _ in range(8):
        correction.learn(10.0, 30.0)
        assert correction.ratio == 1.0
    correction.learn(10.0, 30.0)
    assert correction.ratio == 3.0
