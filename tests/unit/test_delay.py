"""A delay is learned from bounds, and is near its median."""

from random import Random
from statistics import median

import pytest

from foretell.engine.delay import UsualDelay

PAUSE_S = 0.1


def test_it_finds_the_median_whatever_a_few_outliers_say() -> None:
    draws = Random(1)
    samples = [draws.gammavariate(4.0, 1e-3) for _ in range(2000)]
    samples = [s * 100 if i % 20 == 0 else s for i, s in enumerate(samples)]
    delay = UsualDelay(0.0)
    believed = []
    for index, sample in enumerate(samples):
        delay.learn(sample, sample, PAUSE_S * index)
        believed.append(delay.at(PAUSE_S * index))
    assert median(believed[500:]) == pytest.approx(median(samples), rel=0.1)


def test_wide_bounds_around_it_teach_nothing() -> None:
    delay = UsualDelay(0.004)
    delay.learn(0.001, 0.060, 0.0)
    assert delay.at(0.0) == pytest.approx(0.004)
    delay.learn(0.0, 0.001, 0.0)
    assert 0.001 < delay.at(0.0) < 0.004
    for _ in range(100):
        delay.learn(0.0, 0.001, 0.0)
    assert delay.at(0.0) == pytest.approx(0.001)


def test_it_follows_a_change_and_stays_within_its_limits() -> None:
    delay = UsualDelay(0.002, longest_s=1.0)
    for index in range(100):
        delay.learn(0.020, 0.020, PAUSE_S * index)
    assert delay.at(PAUSE_S * 99) == pytest.approx(0.020)
    for _ in range(1000):
        delay.learn(5.0, 5.0, 10.0)
    assert delay.at(10.0) == pytest.approx(1.0)
    for _ in range(1000):
        delay.learn(-1.0, -0.5, 10.0)
    assert delay.at(10.0) == pytest.approx(0.0, abs=1e-9)
    with pytest.raises(ValueError, match="assumed_s"):
        UsualDelay(3.0)


@pytest.mark.parametrize("seed", range(5))
def test_a_burst_is_forgotten_while_nobody_comes(seed: int) -> None:
    """An engine is up for half a minute, serves a few requests, then gets two hundred at once."""
    rng, delay = Random(seed), UsualDelay(0.002)
    delay.at(0.0)
    now_s = 30.0
    for _ in range(24):
        now_s += 0.1
        delay.learn(rng.uniform(0.001, 0.005), 0.01, now_s)
    for _ in range(200):
        now_s += 0.02
        late_s = rng.uniform(0.1, 1.0)
        delay.learn(late_s, late_s + 0.1, now_s)
    assert delay.at(now_s) > 0.2
    assert delay.at(now_s + 5.0) < 0.08
    assert delay.at(now_s + 60.0) < 0.006
    now_s += 60.0
    for _ in range(40):
        now_s += 0.1
        delay.learn(0.3, 0.3, now_s)
    assert delay.at(now_s) > 0.03  # it is high again


@pytest.mark.parametrize("seed", range(5))
def test_a_delay_that_lasts_becomes_the_usual_one(seed: int) -> None:
    rng, delay = Random(seed), UsualDelay(0.002)
    delay.at(0.0)
    now_s = 30.0
    for _ in range(1000):
        now_s += 0.1
        late_s = rng.uniform(0.04, 0.06)
        delay.learn(late_s, late_s, now_s)
    assert delay.at(now_s + 600.0) == pytest.approx(0.05, rel=0.3)
