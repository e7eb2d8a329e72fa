"""Calibration on the recorded steps of a real engine (`tests/data/engine_steps/README.md`)."""

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from foretell.latency.calibration import OnlineStepTime
from foretell.model import BatchShape, Step
from foretell.tools.profiles.steps import fit

RECORDING = Path(__file__).parents[1] / "data" / "engine_steps" / "vllm_cpu_steps.csv.gz"
RUNS = (1, 10, 50, 200)
"""Numbers of steps whose total is predicted: 200 are one answer."""
APART = 50
LEARNING_S, IDLE_S = 60.0, 0.05
NOTHING, FITTED, HELD = "nothing", "fitted on the first half", "the same, not learning"


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of forecasts for one number of steps, relative to the actual time."""

    count: int
    mean: float
    median: float
    off_by: float
    spread: float
    within_2: float


def read_steps() -> list[Step]:
    _, _, *rows = gzip.decompress(RECORDING.read_bytes()).decode().splitlines()
    steps = []
    for row in rows:
        started_us, duration_us, *sums = map(int, row.split(","))
        shape = BatchShape(*sums)
        steps.append(Step(len(steps), started_us / 1e6, duration_us / 1e6, shape))
    return steps


def replay(steps: Sequence[Step], model: OnlineStepTime, learns: bool) -> dict[int, Errors]:
    """Each forecast uses what was known just before; shapes are taken as known."""
    found: dict[int, list[tuple[float, float, float]]] = {n: [] for n in RUNS}
    ended_s = steps[0].started_unix_s
    for index, step in enumerate(steps):
        if learns and step.started_unix_s - ended_s > IDLE_S:
            model.rest(step.started_unix_s - ended_s)
        ended_s = step.started_unix_s + step.duration_s
        if step.started_unix_s - steps[0].started_unix_s >= LEARNING_S:
            for n in RUNS:
                if index % min(n, APART) == 0 and index + n <= len(steps):
                    run, now = steps[index : index + n], model.current()
                    predicted_s = sum(now.step_s(each.shape) for each in run)
                    actual_s = sum(each.duration_s for each in run)
                    found[n].append((predicted_s, actual_s, model.spread(n)))
        if learns:
            model.observe(step.shape, step.duration_s)
    return {n: errors(np.array(each)) for n, each in found.items()}


def errors(forecasts: "np.ndarray[tuple[int, int], np.dtype[np.float64]]") -> Errors:
    predicted, actual, spread = forecasts.T
    error, off = np.abs(predicted - actual) / actual, np.abs(actual / predicted - 1.0)
    return Errors(
        len(actual),
        float(error.mean()),
        float(np.median(error)),
        float(np.sqrt((off**2).mean())),
        float(np.sqrt((spread**2).mean())),
        float((off <= 2 * spread).mean()),
    )


@pytest.fixture(scope="module")
def result() -> dict[str, dict[int, Errors]]:
    steps = read_steps()
    first = [step for step in steps if step.started_unix_s < steps[-1].started_unix_s / 2]
    second = steps[len(first) :]
    fitted = fit(first)
    return {
        NOTHING: replay(second, OnlineStepTime(), True),
        FITTED: replay(second, OnlineStepTime(fitted), True),
        HELD: replay(second, OnlineStepTime(fitted), False),
    }


@pytest.mark.parametrize("steps", RUNS)
def test_after_a_minute_no_profile_is_as_good_as_one_of_the_same_engine(
    result: dict[str, dict[int, Errors]], steps: int
) -> None:
    nothing, fitted = result[NOTHING][steps], result[FITTED][steps]
    assert nothing.count > 100
    assert nothing.mean == pytest.approx(fitted.mean, rel=0.05)
    assert nothing.median == pytest.approx(fitted.median, rel=0.05)


@pytest.mark.parametrize("steps", RUNS)
def test_learning_beats_a_profile_that_is_held_still(
    result: dict[str, dict[int, Errors]], steps: int
) -> None:
    assert result[NOTHING][steps].median < result[HELD][steps].median


@pytest.mark.parametrize("steps", RUNS)
def test_the_spread_covers_what_comes(result: dict[str, dict[int, Errors]], steps: int) -> None:
    nothing = result[NOTHING][steps]
    assert nothing.within_2 > 0.85
    assert nothing.spread < 2 * nothing.off_by
