"""Latencies as clients are told them: that the promised shares hold, and what time is left."""

from random import Random

import pytest

from foretell.engine.announced import (
    WINDOW,
    Announced,
    AnnouncedLatency,
    Calibration,
    ObservedLatency,
    with_length,
)
from foretell.engine.answer import QUANTILE_LEVELS
from foretell.model import LengthEstimate, Load, Prediction

LOAD = Load(0, 0, 0, 0, 1, 0, 1)


def prediction(*seconds: float) -> Prediction:
    quantiles = tuple(zip(QUANTILE_LEVELS, seconds, strict=True))
    return Prediction("a", 1.0, 2.0, 0.1, 0.0, 0.0, LOAD, 0, quantiles, quantiles)


WIDE = prediction(1.0, 2.0, 4.0, 8.0, 16.0, 20.0)


def announced(calibration: Calibration, made: Prediction = WIDE) -> Announced:
    found = calibration.tell("model", made)
    assert found is not None
    return found


SINGLE = WIDE._replace(ttft_quantiles=(), e2e_quantiles=())


def test_the_first_to_end_are_short_and_those_under_way_say_so() -> None:
    """A request arrives each second, and answers take a minute on average: without those under way,
    promises to the first 240 would depend only on the few that have ended."""
    shares = {}
    for counted in (False, True):
        draws, kept = Random(3), []
        for _ in range(20):
            calibration, under_way = Calibration(), list[tuple[float, float]]()
            for now_s in range(240):
                for end_s, began_s in sorted(under_way):
                    if end_s <= now_s:
                        calibration.observe("model", WIDE, None, ObservedLatency(end_s - began_s))
                under_way = [each for each in under_way if each[0] > now_s]
                ages = [(WIDE, now_s - began_s) for _, began_s in under_way] if counted else []
                found = calibration.tell("model", WIDE, ages.copy)
                assert found is not None
                latency_s = draws.expovariate(1 / 60)
                under_way.append((now_s + latency_s, now_s))
                if now_s >= 120:  # before that, no long one has ended
                    kept.append(latency_s <= found.e2e.p90_s)
        shares[counted] = sum(kept) / len(kept)
    assert shares[False] < 0.75
    assert 0.86 < shares[True] < 0.94


def test_without_quantiles_only_answers_to_such_predictions_tell_anything() -> None:
    calibration = Calibration()
    for number in range(300):
        assert (calibration.tell("model", SINGLE) is None) == (number < 20)
        seconds = 1.0 + number % 10
        calibration.observe("model", SINGLE, ObservedLatency(seconds / 2), ObservedLatency(seconds))
        calibration.observe("model", WIDE, ObservedLatency(40.0), ObservedLatency(40.0))
    ttft, e2e = announced(calibration, SINGLE)
    assert ttft[:3] == pytest.approx((0.5, 2.75, 4.7), abs=0.4)
    assert e2e[:3] == pytest.approx((1.0, 5.5, 9.4), abs=0.7)


def test_before_there_are_answers_quantiles_are_taken_at_their_word() -> None:
    assert announced(Calibration()).e2e == AnnouncedLatency(1.0, 4.0, 16.0, 2.0)


def test_at_most_one_in_ten_is_told_more_than_twice_its_latency() -> None:
    assert announced(Calibration()).e2e.typical_s == 2.0
    narrow = prediction(3.0, 3.5, 4.0, 4.5, 5.0, 5.0)
    assert announced(Calibration(), narrow).e2e.typical_s == 4.0


@pytest.mark.parametrize("wrong_by", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("behind", [1, 60])
def test_shares_hold_whatever_is_wrong_with_the_quantiles(wrong_by: float, behind: int) -> None:
    """Answers end after `behind` others have got their predictions."""
    draws, calibration = Random(7), Calibration()
    kept, more_than_twice, under_way = [], [], []
    for number in range(3000):
        latency_s = wrong_by * draws.lognormvariate(1.0, 1.2)
        now = announced(calibration)
        if number >= 1000:
            kept.append(latency_s <= now.e2e.p90_s)
            more_than_twice.append(now.e2e.typical_s > 2 * latency_s)
        under_way.append(latency_s)
        if len(under_way) == behind:
            calibration.observe("model", WIDE, None, ObservedLatency(under_way.pop(0)))
    assert 0.88 <= sum(kept) / len(kept) <= 0.92
    assert sum(more_than_twice) / len(more_than_twice) <= 0.12
    assert announced(calibration).ttft == AnnouncedLatency(
        1.0, 4.0, 16.0, 2.0
    )  # nothing was learnt of it


@pytest.mark.parametrize("mean_stay_s", [3.0, 8.0])
@pytest.mark.parametrize("leave_unseen", [False, True])
def test_who_does_not_wait_for_long_answers_hides_them_from_nobody(
    mean_stay_s: float, leave_unseen: bool
) -> None:
    """A half or a fifth of the clients leave before the end; the shares hold for those who stay."""
    draws, calibration = Random(8), Calibration()
    kept = []
    for number in range(4000):
        latency_s = draws.lognormvariate(1.0, 1.0)
        until_s = draws.expovariate(1 / mean_stay_s)
        kept += [latency_s <= announced(calibration).e2e.p90_s] if number >= 500 else []
        if latency_s <= until_s:
            calibration.observe("model", WIDE, None, ObservedLatency(latency_s))
        elif not leave_unseen:
            calibration.observe("model", WIDE, None, ObservedLatency(until_s, whole=False))
    share = sum(kept) / len(kept)
    assert share < 0.85 if leave_unseen else 0.86 <= share <= 0.94


def test_nothing_is_told_below_what_nobody_saw_the_end_of() -> None:
    calibration = Calibration()
    for number in range(100):
        calibration.observe(
            "model", WIDE, None, ObservedLatency(4.0 if number % 2 else 32.0, number % 2 > 0)
        )
    assert announced(calibration).e2e.p90_s == 32.0


def test_what_was_is_forgotten() -> None:
    calibration = Calibration()
    for latency_s in (400.0, 4.0):
        for _ in range(WINDOW):
            calibration.observe(
                "model", WIDE, ObservedLatency(latency_s), ObservedLatency(latency_s)
            )
    assert announced(calibration).ttft.median_s == pytest.approx(4.0)


def test_kinds_are_apart_and_few() -> None:
    calibration = Calibration()
    for _ in range(30):
        calibration.observe("model", WIDE, ObservedLatency(8.0), ObservedLatency(8.0))
        calibration.observe("other", WIDE, ObservedLatency(2.0), ObservedLatency(2.0))
    assert announced(calibration).e2e.median_s == pytest.approx(8.0)
    for number in range(256):
        calibration.observe(number, WIDE, ObservedLatency(1.0), ObservedLatency(1.0))
    assert announced(calibration).e2e.median_s == 4.0


def test_infinite_predictions_teach_nothing() -> None:
    calibration = Calibration()
    never = prediction(*[float("inf")] * 6)
    for _ in range(30):
        calibration.observe("model", never, ObservedLatency(8.0), ObservedLatency(8.0))
    assert announced(calibration).e2e == AnnouncedLatency(1.0, 4.0, 16.0, 2.0)


def test_what_is_left() -> None:
    whole = AnnouncedLatency(1.0, 4.0, 16.0, 4.0)
    assert whole.left(0.0) == pytest.approx(whole)
    later = whole.left(4.0)
    # Half had ended by then: the P90 of the rest is the P95 of all, on the straight line beyond.
    assert 0.0 < later.low_s < later.median_s < later.p90_s
    assert later.p90_s == pytest.approx(12.0 + 12.0 * 0.6931 / 1.6094, abs=1e-3)
    assert AnnouncedLatency(2.0, 2.0, 2.0, 2.0).left(3.0) == AnnouncedLatency(0.0, 0.0, 0.0, 0.0)


def test_where_few_are_told_more_than_twice_their_latency_it_is_the_median() -> None:
    """The lowest quantile is far too low: twice its value would be useless for planning."""
    draws, calibration = Random(9), Calibration()
    for _ in range(WINDOW):
        latency_s = 4.0 * draws.lognormvariate(0.0, 0.2)
        calibration.observe("model", WIDE, ObservedLatency(latency_s), ObservedLatency(latency_s))
    _, median_s, _, typical_s = announced(calibration).e2e
    assert typical_s == median_s == pytest.approx(4.0, abs=0.2)


def test_latencies_follow_another_estimate_of_the_length() -> None:
    levels = [(level, 10.0 * tokens) for level, (_, tokens) in zip(
        QUANTILE_LEVELS, WIDE.e2e_quantiles, strict=True
    )]  # fmt: skip
    was = LengthEstimate(60.0, tuple(levels), "small_model")
    early = WIDE._replace(ttft_s=0.5, ttft_quantiles=tuple((x, 0.5) for x in QUANTILE_LEVELS))
    assert with_length(early, was, was) == early
    half = LengthEstimate(30.0, tuple((level, tokens / 2) for level, tokens in levels), "model")
    shorter = with_length(early, was, half)
    assert shorter.e2e_s == pytest.approx(0.5 + 1.5 / 2)
    assert dict(shorter.e2e_quantiles)[0.5] == pytest.approx(0.5 + 3.5 / 2)
    assert shorter.ttft_quantiles == early.ttft_quantiles
    # Without quantiles only its mean is known.
    assert with_length(early, was, LengthEstimate(30.0)).e2e_quantiles == shorter.e2e_quantiles
