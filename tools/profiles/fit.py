"""From measured windows to a step's six coefficients. Pure: no clock, no endpoint.

A window is a stretch of an endpoint's time in which it is known what the engine computed. A linear
step time makes its length a sum that needs only totals: how the engine spread the work over its
steps does not matter, but for their number.

What can be told apart:

- *A step from the HTTP around it.* Windows between two tokens of one stream hold no HTTP, as it
  delays both ends alike. They alone separate a step's constant from a sequence's share (by the
  number of streams), from attention (by their contexts), and both from prefill.
- *The frontend.* Lone prompts hold the way through HTTP and back once. What they take beyond the
  steps that the other windows explain is a constant and a part that grows with the prompt: the time
  of a request outside steps. It is reported, and no part of a step.

What cannot:

- HTTP from an engine's waking up, or from host work that a busy engine hides behind its GPU: all of
  it is the frontend's constant. A lone one-token prompt takes that constant and one step.
- Host time within a step from GPU time. A client sees their sum.
- Steps of the same totals: a window tells the mean over its steps, and so do the coefficients where
  the true step time is no line (a CUDA graph's padding, a GPU not yet full).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretell.latency.features import FEATURES, features
from foretell.latency.importers.linear_fit import relative_fit
from foretell.model import BatchShape

_COLUMNS = (*FEATURES, "requests", "request_tokens")
_HUBER = 1.5  # errors beyond this many standard deviations count linearly, not squared
_SIGMA = 1.4826  # standard deviation of a normal variable by its median absolute value
_ROUNDS = 8  # of reweighting; the weights settle within a few
_LEAST_S, _LEAST_ERROR = 1e-6, 1e-9


class FitError(Exception):
    """The windows do not determine the coefficients."""


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time and what the engine computed in it."""

    kind: str
    """"lone", "beside" or "decode": how it was measured."""
    experiment: str
    """Which of its kind. Kinds count alike in a fit, and so do the experiments of a kind."""
    seconds: float
    steps: int
    totals: BatchShape
    """Batch shapes, summed over the steps."""
    requests: int = 0
    """Requests whose whole way, HTTP included, is in `seconds`, one after the other."""
    request_tokens: int = 0
    """Prompt tokens of those requests."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The coefficients fitted to the windows, and their errors."""

    coefficients_s: tuple[float, ...]
    """Seconds for each feature of `latency.features.FEATURES`."""
    request_s: float
    """What a request takes outside the engine's steps, and what each of its prompt tokens adds."""
    request_token_s: float
    relative_residual: float
    """Median of the error's share in what is predicted, over the windows."""
    residual_of: dict[str, float]
    """The median relative error of each kind of window."""


def fit_windows(windows: Sequence[Window]) -> Fit:
    """Non-negative coefficients of the least relative error, robust against stalled windows.

    Iteratively reweighted least squares of the error relative to what the last round predicts:
    relative to the windows' own times, noise would make the coefficients small. Errors count
    squared up to 1.5 standard deviations and linearly beyond (Huber 1964). FitError where the
    windows are too few or too much alike.
    """
    x = np.array([_row(window) for window in windows]).reshape(-1, len(_COLUMNS))
    seconds = np.array([window.seconds for window in windows])
    _check(x, seconds)
    weights = fair = _fair_weights(windows)
    for _ in range(_ROUNDS):
        solution = np.array(relative_fit(x, seconds, weights))
        predicted = np.maximum(x @ solution, _LEAST_S)
        error = np.abs(seconds - predicted) / predicted
        limit = max(_LEAST_ERROR, _HUBER * _SIGMA * float(np.median(error)))
        weights = fair * seconds / predicted * np.sqrt(limit / np.maximum(error, limit))
    coefficients = tuple(float(f"{c:.5g}") for c in solution[: len(FEATURES)])
    kinds = [window.kind for window in windows]
    return Fit(
        coefficients_s=coefficients,
        request_s=float(solution[-2]),
        request_token_s=float(solution[-1]),
        relative_residual=_median(error),
        residual_of={
            kind: _median(error[[other == kind for other in kinds]]) for kind in sorted(set(kinds))
        },
    )


def _row(window: Window) -> tuple[float, ...]:
    _, *shape = features(window.totals)
    return (float(window.steps), *shape, float(window.requests), float(window.request_tokens))


def _fair_weights(windows: Sequence[Window]) -> Any:
    repeats = Counter((window.kind, window.experiment) for window in windows)
    experiments = Counter(kind for kind, _ in repeats)
    return np.array(
        [(experiments[w.kind] * repeats[w.kind, w.experiment]) ** -0.5 for w in windows]
    )


def _check(x: Any, seconds: Any) -> None:
    if not len(x) or not (np.isfinite(seconds).all() and (seconds > 0).all()):
        raise FitError("there are no windows, or windows that took no time")
    absent = [name for name, column in zip(_COLUMNS, x.T, strict=True) if not column.any()]
    if absent:
        raise FitError(f"nothing was measured that tells {', '.join(absent)}")
    scaled = x / seconds[:, None]
    if np.linalg.matrix_rank(scaled / np.abs(scaled).max(axis=0)) < len(_COLUMNS):
        raise FitError(f"{len(x)} windows are too few, or too much alike")


def _median(errors: Any) -> float:
    return round(float(np.median(errors)), 4)
