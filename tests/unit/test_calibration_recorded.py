"""Calibration on the recorded steps of a real engine; bench/accuracy/calibration.md has more."""

from functools import cache
from typing import Any

import pytest

from bench.accuracy.calibration import RUNS, replay_all
from bench.accuracy.recorded_steps import read_steps

NOTHING, FITTED, HELD = (
    "nothing",
    "a profile fitted on the first half",
    "the fitted profile, not learning",
)


@cache
def result() -> dict[str, Any]:
    _, steps = read_steps()
    return replay_all(steps)


def found(start: str, steps: int, what: str) -> float:
    return float(result()["starts"][start]["runs"][str(steps)][what])


@pytest.mark.parametrize("steps", RUNS)
def test_after_a_minute_no_profile_is_as_good_as_one_of_the_same_engine(steps: int) -> None:
    assert found(NOTHING, steps, "forecasts") > 100
    for error in ("mean_error", "median_error"):
        assert found(NOTHING, steps, error) == pytest.approx(found(FITTED, steps, error), rel=0.05)


@pytest.mark.parametrize("steps", RUNS)
def test_learning_beats_a_profile_that_is_held_still(steps: int) -> None:
    assert found(NOTHING, steps, "median_error") < found(HELD, steps, "median_error")


@pytest.mark.parametrize("steps", RUNS)
def test_the_spread_covers_what_comes(steps: int) -> None:
    assert found(NOTHING, steps, "within_2") > 0.85
    assert found(NOTHING, steps, "spread") < 2 * found(NOTHING, steps, "off_by")
