"""Forecasts from snapshots of many engines, in one call (`forecasts.h`).

Each question asks what becomes of one new request on one engine. The arrivals of a call are rows of
`snapshot_rows.ARRIVAL`: for each question those that are on their way to its engine, then those
that are expected there though nobody has announced them, and behind all of them the new request.

Until the moment up to which a snapshot is known to be true, silence means that the step in flight
is still running; the engine is rolled on from there. `compiled.ImpossibleState` where a snapshot
shows one.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.compiled import cost, follow_others, forecast
from foretell.kernel.layout import check_rows

__all__ = ["KEPT", "QUESTION", "Answers", "Costs", "cost", "follow_others", "forecast"]

QUESTION = np.dtype(
    [
        ("engine", np.int64),
        ("samples", np.int64),  # rollouts, each with other output lengths
        ("cached_tokens", np.int64),  # of the new request's prompt, as is believed
        ("first", np.int64),  # the first arrival that is on its way to this engine
        ("announced", np.int64),  # behind the last of those that somebody announced
        ("end", np.int64),  # behind the last of those that are expected besides
        ("version", np.int64),  # of the snapshot, the announced arrivals and the model together
        (
            "delay_s",
            np.float64,
        ),  # from `at_s` of those announced, and the new request, to its queue
    ],
    align=True,
)
"""One engine that a new request asks about."""

KEPT = np.dtype(
    [
        ("version", np.int64),
        ("samples", np.int64),
        ("now_s", np.float64),  # where a step may be scheduled now; otherwise it does not matter
        ("first_end_s", np.float64),
        ("last_end_s", np.float64),
        ("made", np.int64),  # how often the rollouts have been made
    ]
)
"""The state on which rollouts without a new request depended when they were last made."""

check_rows(Question=QUESTION, Kept=KEPT)


class Answers(NamedTuple):
    """The new request's future on each of q engines: instants, infinite where they never come."""

    first_token_s: NDArray[np.float64]
    """(q, most samples)."""
    last_token_s: NDArray[np.float64]
    """(q, most samples, marks)."""
    marks: NDArray[np.void]
    """(marks,): rows of `rollout.MARK` for the new request's length on the last of the engines."""
    means: NDArray[np.float64]
    """(q, 3): seconds from now to the first and to the last token, and output tokens: means over
    the samples and the marks."""
    counts: NDArray[np.int64]
    """(q, 2): `Futures.counts` of each engine."""


class Costs(NamedTuple):
    """The cost of a new request to the others on each of q engines, and memory to compute it."""

    kept: NDArray[np.void]
    """(snapshots,): rows of `KEPT`."""
    without_s: NDArray[np.float64]
    """(2, snapshots, most samples * most requests): first and last tokens of rollouts without the
    new request, kept from call to call."""
    beside_s: NDArray[np.float64]
    """(2, 1, most samples * most requests): the same with it, of one engine at a time."""
    marks: NDArray[np.void]
    """(0,) of `rollout.MARK`."""
    counts: NDArray[np.int64]
    """(2,): not looked at."""
    added_s: NDArray[np.float64]
    """(q or more, 2): seconds by which first and last tokens of others come later, summed over the
    others and averaged over the samples. Negative where it happens to help, as it may by a
    preemption that it prevents; infinite where it keeps somebody from ever running."""
