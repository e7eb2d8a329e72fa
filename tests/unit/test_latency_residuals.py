"""The error of predictions, estimated from steps whose errors are known."""

import math
import random

import pytest

from foretell.latency.residuals import WINDOW_STEPS, StepResiduals, spread

SEEDS = range(5)


def feed(
    residuals: StepResiduals, rng: random.Random, windows: int, common: float, independent: float
) -> None:
    """Add steps of unequal length whose errors have a common part per window and their own part."""
    ended, off = True, 0.0
    for _ in range(windows * WINDOW_STEPS):
        if ended:
            off = rng.gauss(0.0, common)
        predicted_s = rng.choice((0.010, 0.012, 0.030))
        actual_s = predicted_s * max(0.05, 1.0 + off + rng.gauss(0.0, independent))
        ended = residuals.add(predicted_s, actual_s)


def mean_spread(seed: int, common: float, independent: float, steps: int) -> float:
    """Root mean square of the spread over some time: a single moment says little."""
    residuals, rng, squares = StepResiduals(0.3), random.Random(seed), []
    feed(residuals, rng, 40, common, independent)
    for _ in range(40):
        feed(residuals, rng, 4, common, independent)
        squares.append(spread(residuals.variances, steps) ** 2)
    return math.sqrt(sum(squares) / len(squares))


@pytest.mark.parametrize("seed", SEEDS)
def test_what_each_step_draws_anew_averages_out(seed: int) -> None:
    # Long steps weigh more, so their independent errors average out more slowly than 1/n.
    weight = 3 * (0.010**2 + 0.012**2 + 0.030**2) / (0.010 + 0.012 + 0.030) ** 2
    assert mean_spread(seed, 0.0, 0.2, 1) == pytest.approx(0.2 * math.sqrt(weight), rel=0.15)
    assert mean_spread(seed, 0.0, 0.2, 10_000) < 0.03


@pytest.mark.parametrize("seed", SEEDS)
def test_what_steps_have_in_common_does_not(seed: int) -> None:
    assert mean_spread(seed, 0.1, 0.2, 10_000) == pytest.approx(0.1, rel=0.25)
    assert mean_spread(seed, 0.1, 0.02, 1) == pytest.approx(0.1, rel=0.25)


def test_it_follows_a_change_for_better_and_worse() -> None:
    residuals, rng = StepResiduals(0.3), random.Random(1)
    feed(residuals, rng, 100, 0.01, 0.05)
    calm = spread(residuals.variances, 100)
    feed(residuals, rng, 100, 0.2, 0.05)
    rough = spread(residuals.variances, 100)
    feed(residuals, rng, 100, 0.01, 0.05)
    assert rough > 4 * calm
    assert spread(residuals.variances, 100) < 2 * calm


def test_before_there_is_a_window_it_says_what_was_assumed() -> None:
    assert spread(StepResiduals(0.3).variances, 10_000) == pytest.approx(0.3, rel=0.01)
    assert spread(StepResiduals(3.0).variances, 10_000) == pytest.approx(1.0, rel=0.01)
    residuals = StepResiduals(3.0)
    feed(residuals, random.Random(0), 1, 0.0, 0.01)
    assert spread(residuals.variances, 1) > 1.0  # the first steps were only for learning
    feed(residuals, random.Random(0), 1, 0.0, 0.01)
    assert spread(residuals.variances, 1) < 0.2


def test_a_machine_that_slept_is_forgotten() -> None:
    residuals, rng = StepResiduals(0.3), random.Random(2)
    feed(residuals, rng, 50, 0.02, 0.05)
    residuals.add(0.01, 3600.0)
    feed(residuals, rng, 1, 0.02, 0.05)
    assert 0.2 < spread(residuals.variances, 100) < 0.5  # all of one window of 16 was wrong
    feed(residuals, rng, 100, 0.02, 0.05)
    assert spread(residuals.variances, 100) < 0.05


def test_more_steps_never_spread_more() -> None:
    residuals = StepResiduals(0.3)
    feed(residuals, random.Random(3), 30, 0.05, 0.3)
    spreads = [spread(residuals.variances, n) for n in (0, 1, 2, 10, 100, 1000)]
    assert spreads == sorted(spreads, reverse=True)
    assert spreads[0] == spreads[1]
