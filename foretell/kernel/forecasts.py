"""Forecasts from snapshots of many engines, in one call (`forecasts.h`).

Each question asks for the future of the new request on one engine. The arrivals of a call are rows
of `snapshot_rows.ARRIVAL`: for each question the requests on their way to its engine, then the
unannounced ones that are expected there; the last row of all is the new request.

Up to the time until which a snapshot is known to be true, silence means that the step in flight
still runs. Rollouts continue from there. `compiled.ImpossibleState` is raised if a snapshot shows
an impossible state.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.compiled import cost, follow_others, forecast, restore
from foretell.kernel.layout import ROWS

__all__ = [
    "KEPT",
    "QUESTION",
    "RECORDS",
    "START",
    "Answers",
    "Costs",
    "Scratch",
    "cost",
    "follow_others",
    "forecast",
    "restore",
]

RECORDS = ROWS["Records"]
"""All records of one engine in one: passing an array costs 0.3 us, a record 2.3 us."""

START, WORK, BLANK = range(3)
"""Places in `Scratch`: the state from which every rollout starts, the state that a rollout changes,
and an empty state."""
OLDER, NEWER = range(2)
RUNNING_SLOTS, ARRIVALS, WATCHED, DUE = range(4)

QUESTION = ROWS["Question"]
"""One engine that a new request asks about."""

KEPT = ROWS["Kept"]
"""What the latest rollouts without a new request depended on; they are reused while it holds."""


class Scratch(NamedTuple):
    """Working memory of forecasts, reused by all of them so that it stays in the CPU's cache."""

    records: NDArray[np.void]
    """(3,) of `RECORDS`: by `START`, `WORK`, `BLANK`."""
    sequences: NDArray[np.void]
    """(3, most requests) of `layout.SEQUENCE`: by `START`, `WORK`, `BLANK`; of the last only the
    first row is used, a blank one."""
    entries: NDArray[np.void]
    """(2, 2, most requests) of `layout.ENTRY`: by `START`, `WORK`, then by `OLDER`, `NEWER`."""
    slots: NDArray[np.int32]
    """(4, most requests): by `RUNNING_SLOTS`, `ARRIVALS`, `WATCHED`, `DUE`."""
    residues: NDArray[np.int32]
    """(2, tokens of the largest block): `Steady.opening` and `Steady.leaving`."""
    totals: NDArray[np.int64]
    """(most samples * most requests,): output lengths of the rollouts."""
    blocks: NDArray[np.void]
    """This and the next are empty, as snapshots show no identities of blocks."""
    places: NDArray[np.void]
    inputs: NDArray[np.void]
    """(2, most inputs) of `layout.INPUT`: by `START`, `WORK`."""


class Answers(NamedTuple):
    """The new request's future on each of q engines: instants, infinite for what never happens."""

    first_token_s: NDArray[np.float64]
    """(q, most samples)."""
    last_token_s: NDArray[np.float64]
    """(q, most samples, marks)."""
    marks: NDArray[np.void]
    """(marks,): rows of `layout.MARK` for the new request's length on the last of the engines."""
    means: NDArray[np.float64]
    """(q, 4): seconds from now to the first and to the last token, output tokens, and seconds after
    the first token in which it is preempted or recomputed. Means over the samples and the marks;
    the last one is over the marks of the first sample only."""
    counts: NDArray[np.int64]
    """(q, 1): `Futures.counts` of each engine."""


class Costs(NamedTuple):
    """The cost of a new request to the others on each of q engines, and memory to compute it."""

    kept: NDArray[np.void]
    """(snapshots,): rows of `KEPT`."""
    without_s: NDArray[np.float64]
    """(2, snapshots, most samples * most requests): first and last tokens of rollouts without the
    new request, kept from call to call."""
    beside_s: NDArray[np.float64]
    """(2, 1, most samples * most requests): the same with the new request, of one engine at a
    time."""
    marks: NDArray[np.void]
    """(0,) of `layout.MARK`."""
    counts: NDArray[np.int64]
    """(1,): not used."""
    added_s: NDArray[np.float64]
    """(q or more, 2): seconds by which first and last tokens of others come later, summed over the
    others and averaged over the samples. Negative if it helps them, for example by preventing a
    preemption; infinite if it keeps a request from ever running."""
