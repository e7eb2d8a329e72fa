"""What forecasts work on: a snapshot's state, and memory for rollouts (`start.h`)."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.compiled import restore
from foretell.kernel.layout import BATCH, CLOCK, ENGINE, SUMS, check_rows

__all__ = ["RECORDS", "START", "Scratch", "restore"]

RECORDS = np.dtype(
    [
        ("engine", ENGINE),
        ("older", BATCH),
        ("newer", BATCH),
        ("clock", CLOCK),
        ("sums", SUMS),
        ("index", np.int64),  # which snapshot `restore` has written here
        ("version", np.int64),  # and which version of it
        ("inputs", np.int64),  # rows of multimodal inputs and of their contents
    ],
    align=True,
)
"""The records of one engine in one: handing over an array costs 0.3 us, a record 2.3 us."""

check_rows(Records=RECORDS)

START, WORK, BLANK = range(3)
"""Places in `Scratch`: the state from which every rollout starts, the one that a rollout changes,
and one without anything in it."""
OLDER, NEWER = range(2)
RUNNING_SLOTS, ARRIVALS, WATCHED, DUE = range(4)


class Scratch(NamedTuple):
    """Working memory of forecasts, reused by each of them so that it stays in the CPU's cache."""

    records: NDArray[np.void]
    """(3,) of `RECORDS`: by `START`, `WORK`, `BLANK`."""
    sequences: NDArray[np.void]
    """(3, most requests) of `layout.SEQUENCE`: by `START`, `WORK`, `BLANK`; of the last one only
    the first row is looked at, a blank one."""
    entries: NDArray[np.void]
    """(2, 2, most requests) of `layout.ENTRY`: by `START`, `WORK`, then by `OLDER`, `NEWER`."""
    slots: NDArray[np.int32]
    """(4, most requests): by `RUNNING_SLOTS`, `ARRIVALS`, `WATCHED`, `DUE`."""
    residues: NDArray[np.int32]
    """(2, tokens of the largest block): `Steady.opening` and `Steady.leaving`."""
    totals: NDArray[np.int64]
    """(most samples * most requests,): output lengths that rollouts run with."""
    blocks: NDArray[np.void]
    """This and the next are empty: a snapshot shows no block's identity."""
    places: NDArray[np.void]
    inputs: NDArray[np.void]
    """(2, most inputs) of `layout.INPUT`: by `START`, `WORK`."""
