"""Engines whose time the caller keeps: simulated, replayed or emulated.

The loop is that of forecasts (`loop.h`). The caller advances the engine when a step ends, or when a
request arrives at an idle engine. A broken invariant ends the process, unless the state came from
outside (a snapshot): then `compiled.ImpossibleState` is raised.

One call advances many engines, each found by the addresses of its arrays (`engines.h`). Passing an
array to compiled code takes time, and the dozen arrays of an engine take as long as a step of it.
So a row of `PLACED` holds the addresses of an engine's arrays, and all rows are passed as one
array. The writer of a row must keep the arrays alive, and rewrite the row when one is replaced.
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
"""A request's predicted length distribution, and the key of its draws."""
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
    """Entries of batch 0."""
    newer: NDArray[np.void]
    """Entries of batch 1."""
    beliefs: NDArray[np.void]
    """Rows of `BELIEF`, by slot."""


class Engines(NamedTuple):
    """The m engines of a cluster."""

    placed: NDArray[np.void]
    """(m,): rows of `PLACED`."""
    ends_s: NDArray[np.float64]
    """(m,): the end of the oldest step in flight; infinite if there is none."""
    changes: NDArray[np.int64]
    """(m,): the number of changes of each engine's state."""
    changed_s: NDArray[np.float64]
    """(m,): the time of the latest change."""
    outcome: NDArray[np.int64]
    """(3,): the engine that made the latest step, and the outcome of `live.advance`."""
