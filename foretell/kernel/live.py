"""One engine whose time the caller keeps: simulated, replayed or emulated.

The loop is that of forecasts (`loop.h`). The caller advances the engine when a step ends, or when
an idle engine is to find that a request has arrived. A broken invariant ends the process, unless
the state was told by somebody: then there is `compiled.ImpossibleState`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.compiled import advance, count_free, run_steps
from foretell.kernel.layout import check_rows
from foretell.kernel.lengths import WIDTH
from foretell.kernel.start import RECORDS

__all__ = ["BELIEF", "LIVE", "Live", "advance", "count_free", "run_steps"]

TALLY = np.dtype(
    [
        ("begun_s", np.float64, (2,)),  # when each of the two batches began on the device
        ("counted_s", np.float64),  # up to when free blocks have been summed
        ("until_s", np.float64),  # when that ends
        ("counted_for_s", np.float64),
        ("free_s", np.float64),  # free blocks times seconds
        ("free_squared_s", np.float64),
        ("calls", np.int64),
        ("scheduled", np.int64),  # steps so far
        ("completed", np.int64),
        ("tokens", np.int64),  # scheduled so far, those computed again included
        ("told", np.int64),  # 1: the state is what somebody told, which may be none
    ]
)

LIVE = np.dtype([("at", RECORDS), ("tally", TALLY)], align=True)

BELIEF = np.dtype([("length", np.float64, (WIDTH,)), ("key", np.int64)], align=True)
"""A request's output length as predictors believe it, and the key that it is drawn with."""

check_rows(Tally=TALLY, LiveRecord=LIVE, Belief=BELIEF)


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
