"""When everyone in an engine ends: run twice, with a newcomer and without, it says what it costs.

A newcomer delays others in three ways: it takes tokens of a step's budget, so that prompts behind
it are computed later; it makes every step longer that it takes part in; and it takes blocks and a
seat, so that others are admitted later or preempted. All three are in the difference.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.futures import Lengths, Room, Start, limited, reset
from foretell.kernel.jit import compiled
from foretell.kernel.layout import Batch, State
from foretell.kernel.lengths import draw_totals
from foretell.kernel.rollout import Roll, roll
from foretell.kernel.steady import Steady
from foretell.kernel.step_time import StepTime


class Endings(NamedTuple):
    """What came of s rollouts; instants on the start's clock, infinite where they never come."""

    totals: NDArray[np.int64]
    """(s, n): the output lengths they ran with."""
    first_token_s: NDArray[np.float64]
    """(s, n): infinite also for who had its first token before."""
    last_token_s: NDArray[np.float64]
    """(s, n)."""
    marks: NDArray[np.void]
    """(0,) of `rollout.MARK`: nothing is noted on the way."""


@compiled
def sample_endings(
    start: Start, room: Room, model: StepTime, lengths: Lengths, seed: int, endings: Endings
) -> None:
    """Fill `endings`; `start` is left as it is, and nobody in it may be watched.

    Every rollout goes on until nobody is left who can ever run. How many tokens that takes hardly
    matters (`kernel.steady`): it costs what has to be admitted, and who ends.
    """
    records = room.records[0]
    # Here, and no function of its own: none can return a record.
    work = Roll(
        State(
            records.engine,
            room.sequences,
            room.running,
            start.blocks,
            start.places,
            start.first_with,
        ),
        (Batch(records.older, room.older), Batch(records.newer, room.newer)),
        records.clock,
        start.arrivals,
        start.watched,
        endings.marks,
        Steady(records.sums, room.steady_due, room.steady_opening),
    )
    draw_totals(lengths.rows, lengths.generated, lengths.keys, seed, endings.totals)
    for sample in range(len(endings.totals)):
        reset(work, start, room)
        for slot in range(len(start.sequences)):
            total = limited(work.state, slot, endings.totals[sample, slot])
            work.state.sequences[slot].stop_after = total
        roll(work, model, np.inf)
        for slot in range(len(start.sequences)):
            seq = work.state.sequences[slot]
            endings.first_token_s[sample, slot] = seq.first_token_s
            endings.last_token_s[sample, slot] = seq.finished_s


@compiled
def sum_delays(
    without: NDArray[np.float64],
    beside: NDArray[np.float64],
    others: int,
    delays_s: NDArray[np.float64],
) -> None:
    """By how much later the first `others` come in `beside`, (s, m), than in `without`, (s, n).

    Fills `delays_s`, (s,). What never comes without the newcomer either is not its doing; what it
    alone prevents is infinitely late.
    """
    for sample in range(len(delays_s)):
        delays_s[sample] = 0.0
        for slot in range(others):
            if without[sample, slot] < np.inf:
                delays_s[sample] += beside[sample, slot] - without[sample, slot]
