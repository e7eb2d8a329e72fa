"""Possible futures of newcomers: rollouts from one start, each with other output lengths."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.jit import compiled, inlined
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
    """(marks,) of `rollout.MARK`."""
    first_token_s: NDArray[np.float64]
    """(s,): the first token of any of the watched sequences."""
    last_token_s: NDArray[np.float64]
    """(s, marks): the last token of all the watched, had they as many tokens as the mark says."""
    counts: NDArray[np.int64]
    """(2,): preemptions and steps of the first rollout, until the watched have ended."""


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
    length is believed to be as `length` says, are newcomers. They run as far as the last of the
    marks: when they would have ended with any of them is then known from one rollout, for a
    newcomer's end changes little for itself. The marks are set to the middles of equally likely
    parts of its length.

    Only the first rollout goes on behind the first token: how long others will be decides when a
    newcomer can begin, and says little of how fast it then goes.
    """
    records = scratch.records[WORK]
    requests = futures.totals.shape[1]
    for i in range(watched):
        scratch.slots[WATCHED, i] = requests - watched + i
    # Here and in `endings`, and no function of its own: none can return a record.
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
        scratch.slots[WATCHED][:watched],
        futures.marks,
        Steady(records.sums, scratch.slots[DUE], scratch.residues),
    )
    reset(work, scratch, requests)
    _set_marks(work, length)
    state, marks = work.loop.state, futures.marks
    for sample in range(len(futures.first_token_s)):
        if sample > 0:
            reset(work, scratch, requests)
            work.loop.clock.until_first_token = 1
        for slot in range(requests):
            state.sequences[slot].stop_after = limited(state, slot, futures.totals[sample, slot])
        for slot in work.watched:
            state.sequences[slot].stop_after = marks[-1].tokens
        ended = roll(work, model, np.inf)
        futures.first_token_s[sample] = _first_token_s(work) if ended else np.inf
        if sample == 0:
            futures.counts[0] = work.loop.clock.preemptions
            futures.counts[1] = work.loop.clock.iterations
            for i in range(len(marks)):
                futures.last_token_s[0, i] = marks[i].at_s if ended else np.inf
            continue
        later_s = futures.first_token_s[sample] - futures.first_token_s[0]
        for i in range(len(marks)):
            last_s = futures.last_token_s[0, i]
            futures.last_token_s[sample, i] = last_s + later_s if last_s < np.inf else np.inf


@inlined
def _first_token_s(work: Roll) -> float:
    first_s = np.inf
    for slot in work.watched:
        first_s = min(first_s, work.loop.state.sequences[slot].first_token_s)
    return first_s


@compiled
def _set_marks(work: Roll, length: NDArray[np.float64]) -> None:
    slot, count = work.watched[0], len(work.marks)
    for i in range(count):
        tokens = conditional_quantile(length, 0.0, (i + 0.5) / count)
        work.marks[i].tokens = limited(work.loop.state, slot, round(tokens))
        work.marks[i].at_s = -np.inf
