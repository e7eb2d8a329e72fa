"""What clients are told of latencies: the shares that it promises, and what is left of it."""

from random import Random

import pytest

from foretell.engine.answer import QUANTILE_LEVELS
from foretell.engine.told import WINDOW, Calibration, Told, ToldLatency
from foretell.model import Load, Prediction

LOAD = Load(0, 0, 0, 0, 1, 0, 1)


def prediction(*seconds: float) -> Prediction:
    quantiles = tuple(zip(QUANTILE_LEVELS, seconds, strict=True))
    return Prediction("a", 1.0, 2.0, 0.1, 0.0, 0.0, LOAD, 0, quantiles, quantiles)


WIDE = prediction(1.0, 2.0, 4.0, 8.0, 16.0, 20.0)


def told(calibration: Calibration, made: Prediction = WIDE) -> Told:
    found = calibration.tell("model", made)
    assert found is not None
    return found


def test_nothing_is_told_without_quantiles() -> None:
    assert Calibration().tell("model", WIDE._replace(ttft_quantiles=(), e2e_quantiles=())) is None


def test_before_there_are_answers_quantiles_are_taken_at_their_word() -> None:
    assert told(Calibration()).e2e == ToldLatency(1.0, 4.0, 16.0)


def test_at_most_one_in_ten_is_told_more_than_twice_its_latency() -> None:
    assert told(Calibration()).e2e.typical_s == 2.0
    narrow = prediction(3.0, 3.5, 4.0, 4.5, 5.0, 5.0)
    assert told(Calibration(), narrow).e2e.typical_s == 4.0


@pytest.mark.parametrize("wrong_by", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("behind", [1, 60])
def test_shares_hold_whatever_is_wrong_with_the_quantiles(wrong_by: float, behind: int) -> None:
    """Answers end `behind` others later than something is told of them."""
    draws, calibration = Random(7), Calibration()
    kept, more_than_twice, under_way = [], [], []
    for number in range(3000):
        latency_s = wrong_by * draws.lognormvariate(1.0, 1.2)
        now = told(calibration)
        if number >= 1000:
            kept.append(latency_s <= now.e2e.p90_s)
            more_than_twice.append(now.e2e.typical_s > 2 * latency_s)
        under_way.append(latency_s)
        if len(under_way) == behind:
            calibration.observe("model", WIDE, None, under_way.pop(0))
    assert 0.88 <= sum(kept) / len(kept) <= 0.92
    assert sum(more_than_twice) / len(more_than_twice) <= 0.12
    assert told(calibration).ttft == ToldLatency(1.0, 4.0, 16.0)  # of which nothing was learnt


def test_what_was_is_forgotten() -> None:
    calibration = Calibration()
    for latency_s in (400.0, 4.0):
        for _ in range(WINDOW):
            calibration.observe("model", WIDE, latency_s, latency_s)
    assert told(calibration).ttft.median_s == pytest.approx(4.0)


def test_kinds_are_apart_and_few() -> None:
    calibration = Calibration()
    for _ in range(30):
        calibration.observe("model", WIDE, 8.0, 8.0)
        calibration.observe("other", WIDE, 2.0, 2.0)
    assert told(calibration).e2e.median_s == pytest.approx(8.0)
    for number in range(256):
        calibration.observe(number, WIDE, 1.0, 1.0)
    assert told(calibration).e2e.median_s == 4.0


def test_infinite_predictions_teach_nothing() -> None:
    calibration = Calibration()
    never = prediction(*[float("inf")] * 6)
    for _ in range(30):
        calibration.observe("model", never, 8.0, 8.0)
    assert told(calibration).e2e == ToldLatency(1.0, 4.0, 16.0)


def test_what_is_left() -> None:
    whole = ToldLatency(1.0, 4.0, 16.0)
    assert whole.left(0.0) == pytest.approx(whole)
    later = whole.left(4.0)
    # Half had ended by then: the P90 of the others is the P95 of all, on the straight line beyond.
    assert 0.0 < later.low_s < later.median_s < later.p90_s
    assert later.p90_s == pytest.approx(12.0 + 12.0 * 0.6931 / 1.6094, abs=1e-3)
    assert ToldLatency(2.0, 2.0, 2.0).left(3.0) == ToldLatency(0.0, 0.0, 0.0)
