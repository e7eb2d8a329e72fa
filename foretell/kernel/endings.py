"""The ends of all requests in an engine: their difference with a newcomer is what that one costs.

A newcomer delays others in three ways: it takes tokens of a step's budget, so that prompts behind
it are computed later; it makes every step longer that it takes part in; and it takes blocks and a
seat, so that others are admitted later or preempted. All three are in the difference.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.jit import compiled
from foretell.kernel.layout import Batch, State
from foretell.kernel.loop import Loop
from foretell.kernel.rollout import Roll, roll
from foretell.kernel.start import (
    ARRIVALS,
    DUE,
    NEWER,
    OLDER,
    RUNNING_SLOTS,
    WATCHED,
    WORK,
    Scratch,
    limited,
    reset,
)
from foretell.kernel.steady import Steady
from foretell.kernel.step_time import StepTime


class Endings(NamedTuple):
    """The outcome of s rollouts: instants on the start's clock, infinite where they never come."""

    first_token_s: NDArray[np.float64]
    """(s, n): infinite also for requests that had their first token before."""
    last_token_s: NDArray[np.float64]
    """(s, n)."""


@compiled
def sample_endings(
    scratch: Scratch,
    model: StepTime,
    arriving: int,
    totals: NDArray[np.int64],
    marks: NDArray[np.void],
    endings: Endings,
) -> None:
    """Fill `endings`; the start in `scratch` is left as it is.

    `totals`, (s, n), are the output lengths; `arriving` requests have not joined the queue at the
    start. `marks` is an empty array: nothing is noted on the way. Every rollout goes on until
    nobody is left who can ever run. How many tokens that takes hardly matters (`kernel.steady`):
    it costs what has to be admitted, and who ends.
    """
    records = scratch.records[WORK]
    samples, requests = totals.shape
    work = Roll(
        Loop(
            State(
                records.engine,
                scratch.sequences[WORK],
                scratch.slots[RUNNING_SLOTS],
                scratch.blocks,
                scratch.places,
                scratch.slots[ARRIVALS][:0],
            ),
            (
                Batch(records.older, scratch.entries[WORK, OLDER]),
                Batch(records.newer, scratch.entries[WORK, NEWER]),
            ),
            records.clock,
        ),
        scratch.slots[ARRIVALS][:arriving],
        scratch.slots[WATCHED][:0],
        marks,
        Steady(records.sums, scratch.slots[DUE], scratch.residues),
    )
    sequences = work.loop.state.sequences
    for sample in range(samples):
        reset(work, scratch, requests)
        for slot in range(requests):
            total = limited(work.loop.state, slot, totals[sample, slot])
            sequences[slot].stop_after = total
        roll(work, model, np.inf)
        for slot in range(requests):
            endings.first_token_s[sample, slot] = sequences[slot].first_token_s
            endings.last_token_s[sample, slot] = sequences[slot].finished_s


@compiled
def mean_delay_s(without: NDArray[np.float64], beside: NDArray[np.float64], others: int) -> float:
    """Seconds by which `others` come later in `beside`, (s, m), than in `without`, (s, n).

    The sum over the first `others` of the requests, averaged over the s samples. What never comes
    without the newcomer either is not its doing; what it alone prevents is infinitely late.
    """
    total_s = 0.0
    for sample in range(len(without)):
        delay_s = 0.0
        for slot in range(others):
            if without[sample, slot] < np.inf:
                delay_s += beside[sample, slot] - without[sample, slot]
        total_s += delay_s
    return total_s / len(without)
