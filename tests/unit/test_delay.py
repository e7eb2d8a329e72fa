"""A delay is learned from bounds, and is about its median."""

from random import Random
from statistics import median

import pytest

from foretell.engine.delay import UsualDelay


def test_it_finds_the_median_whatever_a_few_outliers_say() -> None:
    draws = Random(1)
    samples = [draws.gammavariate(4.0, 1e-3) for _ in range(2000)]
    samples = [s * 100 if i % 20 == 0 else s for i, s in enumerate(samples)]
    delay = UsualDelay(0.0)
    believed = []
    for sample in samples:
        delay.learn(sample, sample)
        believed.append(delay.seconds)
    assert median(believed[500:]) == pytest.approx(median(samples), rel=0.1)


def test_wide_bounds_around_it_teach_nothing() -> None:
    delay = UsualDelay(0.004)
    delay.learn(0.001, 0.060)
    assert delay.seconds == 0.004
    delay.learn(0.0, 0.001)
    assert 0.001 < delay.seconds < 0.004
    for _ in range(100):
        delay.learn(0.0, 0.001)
    assert delay.seconds == 0.001


def test_it_follows_a_change_and_stays_within_its_limits() -> None:
    delay = UsualDelay(0.002, longest_s=1.0)
    for _ in range(60):
        delay.learn(0.020, 0.020)
    assert delay.seconds == 0.020
    for _ in range(1000):
        delay.learn(5.0, 5.0)
    assert delay.seconds == 1.0
    for _ in range(1000):
        delay.learn(-1.0, -0.5)
    assert delay.seconds == pytest.approx(0.0, abs=1e-9)
    with pytest.raises(ValueError, match="assumed_s"):
        UsualDelay(3.0)
