"""Reads what bench.accuracy.record_steps wrote, and fits a profile to a part of it."""

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from foretell.latency.features import features
from foretell.latency.importers.linear_fit import relative_fit
from foretell.latency.linear import LinearStepTime
from foretell.model import BatchShape

RECORDING = Path(__file__).resolve().parent / "data" / "vllm_cpu_steps.csv.gz"
_REFITS = 6
_OUTLIER = 3.0  # an error beyond this many median ones counts as that many (Huber)


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step, when it began, counted from the first, and how long it took."""

    started_s: float
    duration_s: float
    shape: BatchShape


def read_steps(path: Path = RECORDING) -> tuple[dict[str, Any], list[TimedStep]]:
    """What the recording is, and its steps in their order."""
    about, _, *rows = gzip.decompress(path.read_bytes()).decode().splitlines()
    steps = []
    for row in rows:
        started_us, duration_us, *sums = map(int, row.split(","))
        steps.append(TimedStep(started_us / 1e6, duration_us / 1e6, BatchShape(*sums)))
    return json.loads(about.removeprefix("#")), steps


def fit(steps: Sequence[TimedStep]) -> LinearStepTime:
    """Six coefficients for `steps`: least squares of the error relative to the prediction.

    Refitted with the last fit's predictions, and with less weight for outliers: as relative to
    the actual times, a stall would count next to nothing and a step cut short everything.
    """
    x = np.array([features(step.shape) for step in steps])
    seconds = np.array([step.duration_s for step in steps])
    weights: Any = 1.0
    for _ in range(_REFITS):
        coefficients = relative_fit(x, seconds, weights)
        predicted = np.maximum(x @ np.array(coefficients), 1e-6)
        errors = np.abs(seconds - predicted) / predicted
        limit = _OUTLIER * np.median(errors)
        weights = seconds / predicted * np.sqrt(np.minimum(1.0, limit / np.maximum(errors, limit)))
    return LinearStepTime(coefficients)
