"""Many rollouts from one start, each with other output lengths."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.jit import compiled, inlined
from foretell.kernel.layout import BATCH, ENGINE, Batch, State
from foretell.kernel.lengths import conditional_quantile, draw_totals
from foretell.kernel.rollout import CLOCK, Roll, roll
from foretell.kernel.steady import NEVER, SUMS, Steady
from foretell.kernel.step_time import StepTime


class Lengths(NamedTuple):
    """What is believed of the output lengths of a start's n sequences, by slot."""

    rows: NDArray[np.float64]
    """(n, `lengths.WIDTH`)."""
    generated: NDArray[np.int64]
    keys: NDArray[np.int64]
    """By which a sequence is dealt its levels."""


RECORDS = np.dtype(
    [("engine", ENGINE), ("older", BATCH), ("newer", BATCH), ("clock", CLOCK), ("sums", SUMS)],
    align=True,
)


class Start(NamedTuple):
    """An engine as every rollout finds it.

    With all records in one array: to hand over an array costs 0.3 us, a record 2.3 us.
    """

    records: NDArray[np.void]
    """(1,) of `RECORDS`."""
    sequences: NDArray[np.void]
    running: NDArray[np.int32]
    blocks: NDArray[np.void]
    places: NDArray[np.void]
    first_with: NDArray[np.int32]
    older: NDArray[np.void]
    """The entries of the steps in flight."""
    newer: NDArray[np.void]
    arrivals: NDArray[np.int32]
    watched: NDArray[np.int32]


class Room(NamedTuple):
    """What a rollout works on: no smaller than the start, whatever it holds."""

    records: NDArray[np.void]
    sequences: NDArray[np.void]
    running: NDArray[np.int32]
    older: NDArray[np.void]
    newer: NDArray[np.void]
    steady_due: NDArray[np.int32]
    steady_opening: NDArray[np.int32]


class Futures(NamedTuple):
    """What came of s rollouts; instants on the start's clock, infinite where they never come."""

    totals: NDArray[np.int64]
    """(s, n): the output lengths they ran with."""
    marks: NDArray[np.void]
    """(marks,) of `rollout.MARK`."""
    first_token_s: NDArray[np.float64]
    """(s,): of any of the watched sequences."""
    last_token_s: NDArray[np.float64]
    """(s, marks): of all the watched, had they as many tokens as the mark says."""
    counts: NDArray[np.int64]
    """(2,): preemptions and steps of the first rollout, until the watched have ended."""


@compiled
def sample_futures(
    start: Start, room: Room, model: StepTime, lengths: Lengths, seed: int, futures: Futures
) -> None:
    """Fill `futures`; `start` is left as it is.

    The watched sequences, which are newcomers, run as far as the last of the marks: when they
    would have ended with any of them is then known from one rollout, for a newcomer's end changes
    little for itself. The marks are set to the middles of equally likely parts of its length.

    Only the first rollout goes on behind the first token: how long others will be decides when a
    newcomer can begin, and says little of how fast it then goes.
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
        futures.marks,
        Steady(records.sums, room.steady_due, room.steady_opening),
    )
    reset(work, start, room)
    _set_marks(work, lengths)
    draw_totals(lengths.rows, lengths.generated, lengths.keys, seed, futures.totals)
    for sample in range(len(futures.first_token_s)):
        if sample > 0:
            reset(work, start, room)
            work.clock.until_first_token = 1
        for slot in range(len(start.sequences)):
            total = limited(work.state, slot, futures.totals[sample, slot])
            work.state.sequences[slot].stop_after = total
        for slot in work.watched:
            work.state.sequences[slot].stop_after = work.marks[-1].tokens
        ended = roll(work, model, np.inf)
        futures.first_token_s[sample] = _first_token_s(work) if ended else np.inf
        if sample == 0:
            futures.counts[0], futures.counts[1] = work.clock.preemptions, work.clock.iterations
            for i in range(len(work.marks)):
                futures.last_token_s[0, i] = work.marks[i].at_s if ended else np.inf
            continue
        later_s = futures.first_token_s[sample] - futures.first_token_s[0]
        for i in range(len(work.marks)):
            last_s = futures.last_token_s[0, i]
            futures.last_token_s[sample, i] = last_s + later_s if last_s < np.inf else np.inf


@inlined
def _first_token_s(work: Roll) -> float:
    first_s = np.inf
    for slot in work.watched:
        first_s = min(first_s, work.state.sequences[slot].first_token_s)
    return first_s


@compiled
def limited(state: State, slot: int, total: int) -> int:
    """`total` as output tokens that the engine will allow `slot`: at least one more."""
    seq = state.sequences[slot]
    most = state.engine.max_model_len - seq.prompt
    if seq.max_tokens > 0:
        most = min(most, seq.max_tokens)
    return max(seq.output + 1, min(most, total))


@compiled
def _set_marks(work: Roll, lengths: Lengths) -> None:
    slot, count = work.watched[0], len(work.marks)
    for i in range(count):
        tokens = conditional_quantile(lengths.rows[slot], 0.0, (i + 0.5) / count)
        work.marks[i].tokens = limited(work.state, slot, round(tokens))
        work.marks[i].at_s = -np.inf


@compiled
def reset(work: Roll, start: Start, room: Room) -> None:
    """Back to the start. The marks are left: only the first rollout comes to any."""
    room.records[0] = start.records[0]
    for slot in range(len(start.sequences)):
        room.sequences[slot] = start.sequences[slot]
        room.steady_due[slot] = NEVER
    for i in range(work.state.engine.running):
        room.running[i] = start.running[i]
    for i in range(work.batches[0].counts.scheduled):
        room.older[i] = start.older[i]
    for i in range(work.batches[1].counts.scheduled):
        room.newer[i] = start.newer[i]
