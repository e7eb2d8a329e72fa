"""How well are a real engine's step times learnt?

Replays the recording of `bench.accuracy.record_steps` through online calibration, from several
starts. A prediction is made with what was known just before: of the next step, and of the sum of
the next 10, 50 and 200, whose shapes are taken as known.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bench.accuracy.recorded_steps import RECORDING, TimedStep, read_steps
from bench.report import Benchmark, Blocks, Numbers, markdown_table
from foretell.config import load_profile
from foretell.latency.calibration import OnlineStepTime
from foretell.latency.linear import StepTimeModel
from foretell.tools.profiles.steps import fit

BENCH = Benchmark(__file__, __doc__, takes="a minute")
RUNS = (1, 10, 50, 200)
"""Steps of which the sum is predicted: 200 are an answer."""
_APART = 50
"""Steps between predictions, at most; longer runs overlap."""
LEARNING_S = 60.0
"""Seconds of traffic after which a model is judged."""
IDLE_S = 0.05
"""Time without a step from which on the engine is taken to have had nothing to do."""
CURVE_STEPS = (0, 10, 30, 100, 300, 1000)
"""Steps seen between which the error of the next is shown."""
OTHER_PROFILE = "A30/Llama-2-7b-hf"


@dataclass(slots=True)
class Forecasts:
    """Predicted and actual times of runs of some length."""

    predicted_s: list[float] = field(default_factory=list)
    actual_s: list[float] = field(default_factory=list)
    spread: list[float] = field(default_factory=list)

    def report(self) -> dict[str, float]:
        """Errors as ratios; within_1 and within_2: shares within one and two spreads."""
        predicted, actual = np.array(self.predicted_s), np.array(self.actual_s)
        error = np.abs(predicted - actual) / actual
        off = np.abs(actual / predicted - 1.0)
        spread = np.array(self.spread)
        return {
            "forecasts": len(actual),
            "mean_error": round(float(error.mean()), 4),
            "median_error": round(float(np.median(error)), 4),
            "total_error": round(float(predicted.sum() / actual.sum() - 1.0), 4),
            "off_by": round(float(np.sqrt((off**2).mean())), 4),
            "spread": round(float(np.sqrt((spread**2).mean())), 4),
            "within_1": round(float((off <= spread).mean()), 4),
            "within_2": round(float((off <= 2 * spread).mean()), 4),
        }


def replay(steps: Sequence[TimedStep], model: OnlineStepTime, learns: bool) -> dict[str, Any]:
    """Errors of `model` on `steps`, after `LEARNING_S` and before."""
    begin_s = steps[0].started_s
    found = {n: Forecasts() for n in RUNS}
    early: list[float] = []
    ended_s = begin_s
    for index, step in enumerate(steps):
        elapsed_s = step.started_s - begin_s
        if learns and step.started_s - ended_s > IDLE_S:
            model.rest(step.started_s - ended_s)
        ended_s = step.started_s + step.duration_s
        if elapsed_s >= LEARNING_S:
            for n, forecasts in found.items():
                if index % min(n, _APART) == 0 and index + n <= len(steps):
                    run = steps[index : index + n]
                    forecasts.predicted_s.append(total_s(model.current(), run))
                    forecasts.actual_s.append(sum(s.duration_s for s in run))
                    forecasts.spread.append(model.spread(n))
        if index < CURVE_STEPS[-1]:
            early.append(abs(model.step_s(step.shape) / step.duration_s - 1.0))
        if learns:
            model.observe(step.shape, step.duration_s)
    return {
        "runs": {str(n): forecasts.report() for n, forecasts in found.items()},
        "curve": [round(float(np.median(early[a:b])), 4) for a, b in pairwise(CURVE_STEPS)],
        "changes": model.changes,
    }


def total_s(model: StepTimeModel, run: Sequence[TimedStep]) -> float:
    return sum(model.step_s(step.shape) for step in run)


def replay_all(steps: Sequence[TimedStep]) -> Numbers:
    """Every start, on the second half of the recording; the fit sees the first half only."""
    middle_s = steps[-1].started_s / 2
    first = [step for step in steps if step.started_s < middle_s]
    second = steps[len(first) :]
    fitted = fit(first)
    starts: dict[str, tuple[OnlineStepTime, bool]] = {
        "nothing": (OnlineStepTime(), True),
        "a profile fitted on the first half": (OnlineStepTime(fitted), True),
        f"the tables of {OTHER_PROFILE}": (OnlineStepTime(load_profile(OTHER_PROFILE)), True),
        "the fitted profile, not learning": (OnlineStepTime(fitted), False),
        "a fit on the second half itself, not learning": (OnlineStepTime(fit(second)), False),
    }
    return {
        "steps": {"first_half": len(first), "second_half": len(second)},
        "coefficients_s": fitted.coefficients_s,
        "starts": {name: replay(second, *start) for name, start in starts.items()},
    }


def percent(value: float) -> str:
    return f"{value:.1%}"


def error_table(result: dict[str, Any]) -> str:
    header = ["started from", *(f"{n} step{'s' * (n > 1)}" for n in RUNS), "all of them"]
    rows = [
        (
            name,
            *(
                f"{percent(cell['mean_error'])} / {percent(cell['median_error'])}"
                for cell in found["runs"].values()
            ),
            f"{found['runs']['1']['total_error']:+.1%}",
        )
        for name, found in result["starts"].items()
    ]
    return markdown_table(header, rows)


def curve_table(result: dict[str, Any]) -> str:
    spans = [f"{a + 1} to {b}" for a, b in pairwise(CURVE_STEPS)]
    rows = [(name, *map(percent, found["curve"])) for name, found in result["starts"].items()]
    return markdown_table(["started from", *spans], rows)


def spread_table(result: dict[str, Any]) -> str:
    header = ("steps", "said", "was", "within one", "within two")
    runs = result["starts"]["nothing"]["runs"]
    keys = ("spread", "off_by", "within_1", "within_2")
    rows = [(n, *(percent(cell[key]) for key in keys)) for n, cell in runs.items()]
    return markdown_table(header, rows)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--recording", type=Path, default=RECORDING)


def measure(options: argparse.Namespace) -> Numbers:
    """Replay the recording."""
    about, steps = read_steps(options.recording)
    return {"recording": about, **replay_all(steps)}


def tables(result: Numbers) -> Blocks:
    """What was recorded, errors, the way there, and the claimed spread."""
    about, steps = result["recording"], result["steps"]
    changes = result["starts"]["nothing"]["changes"]
    recording = (
        f"{about['what']}, {about['date']}: {about['requests']:,} requests in "
        f"{about['seconds']:.0f} s, {sum(steps.values()):,} steps as the plugin published them. "
        f"Engine flags: `{about['engine_args']}`. Machine: {about['machine']}. "
        f"The second half has {steps['second_half']:,} steps."
    )
    return {
        "recording": recording,
        "tables": error_table(result),
        "curve": curve_table(result),
        "spread": f"{spread_table(result)}\n"
        f"It took its engine for changed {changes} times in these steps.",
    }
