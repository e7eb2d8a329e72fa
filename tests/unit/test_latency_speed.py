"""The factor by which an engine is for a while faster or slower than learnt."""

import math
import random

import pytest

from foretell.latency.speed import Speed

SEEDS = range(5)
STEP_S = 0.02


def drive(
    speed: Speed, rng: random.Random, seconds: float, slowdown: float = 1.0, noise: float = 0.1
) -> None:
    """Add steps predicted to take 20 ms that take `slowdown` times that, for about `seconds`."""
    for _ in range(round(seconds / STEP_S / slowdown)):
        speed.add(STEP_S * slowdown * math.exp(rng.gauss(0.0, noise)), STEP_S, 0.1)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("slowdown", [0.7, 1.0, 1.25])
def test_what_lasts_is_known_almost_wholly(seed: int, slowdown: float) -> None:
    speed = Speed()
    drive(speed, random.Random(seed), 120.0, slowdown)
    assert speed.factor == pytest.approx(slowdown, rel=0.05)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_phase_of_seconds_is_believed_mostly_and_then_forgotten(seed: int) -> None:
    rng, speed = random.Random(seed), Speed()
    drive(speed, rng, 120.0)
    drive(speed, rng, 3.0, 1.25)
    assert 1.1 < speed.factor < 1.25
    drive(speed, rng, 5.0)
    assert speed.factor == pytest.approx(1.0, abs=0.05)


def test_one_stall_says_little() -> None:
    speed = Speed()
    drive(speed, random.Random(0), 10.0)
    before = speed.factor
    speed.add(100 * STEP_S, STEP_S, 0.1)
    assert before < speed.factor < 1.01 * before


def test_the_first_steps_teach_the_shapes() -> None:
    speed = Speed()
    for _ in range(32):
        speed.add(10 * STEP_S, STEP_S, 1.0)
    assert speed.factor == 1.0
    speed.add(10 * STEP_S, STEP_S, 1.0)
    assert 1.0 < speed.factor < 1.5


def test_it_begins_anew() -> None:
    speed = Speed()
    drive(speed, random.Random(0), 10.0, 1.2)
    assert speed.factor > 1.1
    speed.begin()
    assert speed.factor == 1.0
    drive(speed, random.Random(0), 0.5)
    assert speed.factor == 1.0
    drive(speed, random.Random(0), 60.0)
    assert speed.factor == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("seed", SEEDS)
def test_steps_as_long_as_the_window_are_averaged_too(seed: int) -> None:
    """With steps of 2 s, a window of a second would hold half a step, and follow each of them."""
    rng, speed, factors = random.Random(seed), Speed(), []
    for _ in range(400):
        speed.add(2.0 * math.exp(rng.gauss(0.0, 0.2)), 2.0, 0.2)
        factors.append(speed.factor)
    assert max(abs(factor - 1.0) for factor in factors[100:]) < 0.15


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("known_s", [0.2, 10.0])
def test_what_fades_gives_way_to_what_is_seen(seed: int, known_s: float) -> None:
    rng, speed = random.Random(seed), Speed()
    drive(speed, rng, known_s)
    before = speed.factor
    speed.fade(0.25)
    assert speed.factor == pytest.approx(before / 4)
    drive(speed, rng, 2 * STEP_S)
    assert speed.factor < 0.5
    drive(speed, rng, 10.0)
    assert speed.factor == pytest.approx(1.0, abs=0.1)
