"""Engines whose time the caller keeps: simulated, replayed or emulated.

The loop is that of forecasts (`loop.h`). The caller advances the engine when a step ends, or when
an idle engine is to find that a request has arrived. A broken invariant ends the process, unless
the state was told by somebody: then there is `compiled.ImpossibleState`.

Many engines go on in one call, each found by the addresses of its arrays (`engines.h`). Handing an
array over to compiled code takes time, and an engine has a dozen: together as much as a step of it.
So a row of `PLACED` says where an engine's arrays lie, and all engines are handed over as one
array. The writer of a row keeps the arrays alive and writes it anew when one is replaced.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.compiled import advance, count_free, publish_all, run, run_steps, step
from foretell.kernel.layout import ROWS

__all__ = [
    "BELIEF",
    "LIVE",
    "PLACED",
    "Engines",
    "Live",
    "advance",
    "count_free",
    "publish_all",
    "run",
    "run_steps",
    "step",
]

LIVE = ROWS["LiveRecord"]
BELIEF = ROWS["Belief"]
"""A request's output length as predictors believe it, and the key that it is drawn with."""
PLACED = ROWS["Placed"]
"""The addresses of the arrays of one engine's `Live` and of its step-time model."""


class Live(NamedTuple):
    """The arrays of one engine and of its steps in flight."""

    records: NDArray[np.void]
    """(1,) of `LIVE`."""
    sequences: NDArray[np.void]
    running: NDArray[np.int32]
    blocks: NDArray[np.void]
    places: NDArray[np.void]
    first_with: NDArray[np.int32]
    inputs: NDArray[np.void]
    older: NDArray[np.void]
    """Entries of the first of the two batches."""
    newer: NDArray[np.void]
    """Entries of the second one."""
    beliefs: NDArray[np.void]
    """Rows of `BELIEF`, by slot."""


class Engines(NamedTuple):
    """The m engines of a cluster."""

    placed: NDArray[np.void]
    """(m,): rows of `PLACED`."""
    ends_s: NDArray[np.float64]
    """(m,): the end of the oldest step in flight; infinite where there is none."""
    changes: NDArray[np.int64]
    """(m,): the number of changes of each engine's state."""
    changed_s: NDArray[np.float64]
    """(m,): the time of the latest change."""
    outcome: NDArray[np.int64]
    """(3,): the engine that made the latest step, and the outcome that `live.advance` filled in."""
