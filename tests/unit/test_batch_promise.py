"""When a batch will be done: batches whose requests are known, and promises derived from that."""

import random
from statistics import NormalDist

import pytest

from foretell.batch.promise import (
    CONFIDENCE,
    BatchLengths,
    BatchPace,
    Correction,
    Expected,
    expected,
)
from foretell.batch.release import LARGEST_WINDOW, LOOK_S, most_after

EACH_S = 2.0
"""Seconds that a request of 100 tokens takes."""


def pace_of(*requests: float) -> BatchPace:
    """A pace at which these numbers of requests have been in progress, each for a second."""
    pace = BatchPace()
    for each in requests:
        pace.add(100.0 / EACH_S * each, each, 1.0)
    return pace


def lengths_of(*tokens: int) -> BatchLengths:
    found = BatchLengths()
    for each in tokens:
        found = found.with_more(each)
    return found


ALIKE = lengths_of(*[100] * 20)


def seconds(
    left: int, before: float, pace: BatchPace, now: float, lengths: BatchLengths = ALIKE
) -> float:
    told = expected(left, before, lengths, pace, now)
    assert told is not None
    return told.seconds


def test_requests_alike_of_which_as_many_are_on_their_way_as_ever() -> None:
    pace = pace_of(10, 10, 10, 10)
    assert pace.steady == pytest.approx(10.0)
    # 100 requests take 20 s, ten at a time.
    assert seconds(100, 0, pace, 10) == pytest.approx(20.0)
    assert seconds(100, 1000, pace, 10) == pytest.approx(22.0), "others come first"
    assert seconds(3, 0, pace, 10) == pytest.approx(EACH_S)
    assert expected(0, 1000, ALIKE, pace, 10) == Expected(0.0, 0.0)


def test_more_are_sent_from_one_look_to_the_next() -> None:
    pace = pace_of(*[100] * 5)
    window, looks = 1.0, 0
    while window < 100:
        window, looks = most_after(window), looks + 1
    begun, grown = seconds(2000, 0, pace, 0), seconds(2000, 0, pace, 100)
    assert grown == pytest.approx(40.0)
    assert grown + 0.3 * looks * LOOK_S < begun < grown + looks * LOOK_S


def test_as_many_as_when_they_did_not_become_more_are_reckoned_with() -> None:
    assert pace_of(10, 20, 40, 41, 40).steady == pytest.approx(41.0)
    assert pace_of(10, 20, 40).steady == LARGEST_WINDOW, "nobody knows where it ends"
    pace = pace_of(50, 50)
    pace.pause()
    pace.add(50.0, 1.0, 1.0)
    assert pace.steady == pytest.approx(50.0), "it has begun anew"


def test_what_varies_may_be_further_off() -> None:
    even = pace_of(*[10] * 5)
    mixed = lengths_of(*[50, 150] * 10)
    least, varied = expected(100, 0, ALIKE, even, 10), expected(100, 0, mixed, even, 10)
    uneven = expected(100, 0, ALIKE, pace_of(10, 14, 12, 8, 8, 4), 10)
    assert least is not None
    assert varied is not None
    assert uneven is not None
    assert least.off_ratio < min(varied.off_ratio, uneven.off_ratio)
    more = expected(1000, 0, mixed, even, 10)
    assert more is not None
    assert more.off_ratio < varied.off_ratio, "deviations average out"


def test_nothing_is_expected_while_too_little_is_known() -> None:
    assert expected(10, 0, lengths_of(100), pace_of(50, 50, 50), 1) is None
    assert expected(10, 0, ALIKE, pace_of(50), 1) is None
    assert expected(10, 0, ALIKE, BatchPace(), 1) is None


@pytest.mark.parametrize("bias", [0.3, 1.0, 2.0])
def test_corrected_promises_are_kept_as_often_as_said(bias: float) -> None:
    """The predictions for small batches have larger errors than those for large ones."""
    rng = random.Random(f"{bias}")
    small, large = [], []
    for _ in range(30):
        correction = Correction()
        for number in range(60):
            told = Expected(rng.uniform(5.0, 500.0), rng.choice((0.1, 0.5)))
            took_s = told.seconds * bias * rng.lognormvariate(0.0, told.off_ratio)
            if number >= 10:
                of = large if told.off_ratio < 0.2 else small
                of.append(took_s <= correction.promised_s(told))
            correction.learn(told, took_s)
    assert sum(small + large) / len(small + large) == pytest.approx(CONFIDENCE, abs=0.03)
    if bias == 1.0:
        for each in (small, large):
            assert sum(each) / len(each) == pytest.approx(CONFIDENCE, abs=0.06)


def test_promises_are_cautious_while_few_batches_have_ended() -> None:
    told = Expected(100.0, 0.1)
    correction = Correction()
    usual = NormalDist().inv_cdf(CONFIDENCE)
    assert correction.promised_s(told) == pytest.approx(100.0 * (1 + 2 * usual * 0.1))
    correction.learn(told, 150.0)
    assert correction.promised_s(told) == pytest.approx(200.0), "twice as far off as the one seen"
    for _ in range(8):
        correction.learn(told, 100.0)
    assert correction.promised_s(told) == pytest.approx(150.0), "the longest of nine"
    for _ in range(10):
        correction.learn(told, 100.0)
    assert correction.promised_s(told) == pytest.approx(100.0), "the second longest of 19"
