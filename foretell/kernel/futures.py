"""Possible futures of an engine's requests: rollouts from one start, each with other lengths."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.jit import compiled
from foretell.kernel.layout import Batch, State
from foretell.kernel.lengths import conditional_quantile
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


class Futures(NamedTuple):
    """The outcome of s rollouts: instants on the start's clock, infinite where they never come."""

    totals: NDArray[np.int64]
    """(s, n): the output lengths they run with."""
    marks: NDArray[np.void]
    """(marks,): rows of `rollout.MARK`; none where all requests are followed to their ends."""
    first_token_s: NDArray[np.float64]
    """(s, 1): the first token of any newcomer; or (s, n), also infinite where it came before."""
    last_token_s: NDArray[np.float64]
    """(s, marks): the last token of all newcomers, had they as many tokens as the mark says; or
    (s, n)."""
    counts: NDArray[np.int64]
    """(2,): preemptions and steps of the first rollout; for newcomers until they have ended."""


@compiled
def sample_futures(
    scratch: Scratch,
    model: StepTime,
    arriving: int,
    watched: int,
    length: NDArray[np.float64],
    futures: Futures,
) -> None:
    """Fill all of `futures` but its totals; the start in `scratch` is left as it is.

    `arriving` requests have not joined the queue at the start. The last `watched` sequences, whose
    length is believed to be as `length` says, are newcomers. Where there are none, every rollout
    goes on until nobody is left who can ever run. How many tokens that takes hardly matters
    (`kernel.steady`): it costs what has to be admitted, and who ends.

    Newcomers run as far as the last of the marks: when they would have ended with any of them is
    then known from one rollout, for a newcomer's end changes little for itself. The marks are set
    to the middles of equally likely parts of its length. Only the first rollout goes on behind the
    first token: how long others will be decides when a newcomer can begin, and says little of how
    fast it then goes.
    """
    records = scratch.records[WORK]
    samples, requests = futures.totals.shape
    for i in range(watched):
        scratch.slots[WATCHED, i] = requests - watched + i
    work = Roll(
        Loop(
            State(
                records.engine,
                scratch.sequences[WORK],
                scratch.slots[RUNNING_SLOTS],
                scratch.blocks,
                scratch.places,
                scratch.slots[ARRIVALS][:0],
                scratch.inputs[WORK],
            ),
            (
                Batch(records.older, scratch.entries[WORK, OLDER]),
                Batch(records.newer, scratch.entries[WORK, NEWER]),
            ),
            records.clock,
        ),
        scratch.slots[ARRIVALS][:arriving],
        scratch.slots[WATCHED][:watched],
        futures.marks,
        Steady(records.sums, scratch.slots[DUE], scratch.residues[0], scratch.residues[1]),
    )
    state, clock = work.loop.state, work.loop.clock
    for sample in range(samples):
        reset(work, scratch, requests)
        for slot in range(requests):
            state.sequences[slot].stop_after = limited(state, slot, futures.totals[sample, slot])
        if watched > 0:
            _follow_newcomers(work, length, sample == 0)
        ended = roll(work, model, np.inf)
        if sample == 0:
            futures.counts[0], futures.counts[1] = clock.preemptions, clock.iterations
        if watched > 0:
            _note_newcomers(work, sample, ended, futures)
        else:
            for slot in range(requests):
                futures.first_token_s[sample, slot] = state.sequences[slot].first_token_s
                futures.last_token_s[sample, slot] = state.sequences[slot].finished_s


@compiled
def _follow_newcomers(work: Roll, length: NDArray[np.float64], first: bool) -> None:
    """Set the marks in the first rollout; later ones go no further than a first token."""
    state, count = work.loop.state, len(work.marks)
    if first:
        for i in range(count):
            tokens = conditional_quantile(length, 0.0, (i + 0.5) / count)
            work.marks[i].tokens = limited(state, work.watched[0], round(tokens))
            work.marks[i].at_s = -np.inf
    else:
        work.loop.clock.until_first_token = 1
    for slot in work.watched:
        state.sequences[slot].stop_after = work.marks[-1].tokens


@compiled
def _note_newcomers(work: Roll, sample: int, ended: bool, futures: Futures) -> None:
    first_s = np.inf
    if ended:
        for slot in work.watched:
            first_s = min(first_s, work.loop.state.sequences[slot].first_token_s)
    futures.first_token_s[sample, 0] = first_s
    for i in range(len(work.marks)):
        if sample == 0:
            futures.last_token_s[0, i] = work.marks[i].at_s if ended else np.inf
            continue
        last_s = futures.last_token_s[0, i]
        if last_s < np.inf:
            last_s += first_s - futures.first_token_s[0, 0]
        futures.last_token_s[sample, i] = last_s
