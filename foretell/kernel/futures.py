"""Many rollouts from one start, each with other output lengths."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.jit import compiled, inlined
from foretell.kernel.layout import Batch, State
from foretell.kernel.lengths import conditional_quantile, draw_totals
from foretell.kernel.rollout import Roll, roll
from foretell.kernel.steady import NEVER
from foretell.kernel.step_time import StepTime


class Lengths(NamedTuple):
    """What is believed of the output lengths of a start's n sequences, by slot."""

    rows: NDArray[np.float64]
    """(n, `lengths.WIDTH`)."""
    generated: NDArray[np.int64]
    keys: NDArray[np.int64]
    """By which a sequence is dealt its levels."""


class Futures(NamedTuple):
    """What came of s rollouts; instants on the start's clock, infinite where they never come."""

    totals: NDArray[np.int64]
    """(s, n): the output lengths they ran with."""
    first_token_s: NDArray[np.float64]
    """(s,): of any of the watched sequences."""
    last_token_s: NDArray[np.float64]
    """(s, marks): of all the watched, had they as many tokens as the mark says."""
    preemptions: NDArray[np.int64]
    """(1,): in the first rollout, until the watched have ended."""
    steps: NDArray[np.int64]
    """(1,): likewise."""


@compiled
def sample_futures(
    start: Roll, work: Roll, model: StepTime, lengths: Lengths, seed: int, futures: Futures
) -> None:
    """Fill `futures`; `work` has the shape of `start`, which is left as it is.

    The watched sequences, which are newcomers, run as far as the last of `work.marks`: when they
    would have ended with any of them is then known from one rollout, for a newcomer's end changes
    little for itself. The marks are set to the middles of equally likely parts of its length.

    Only the first rollout goes on behind the first token: how long others will be decides when a
    newcomer can begin, and says little of how fast it then goes.
    """
    _set_marks(start.state, work, lengths)
    draw_totals(lengths.rows, lengths.generated, lengths.keys, seed, futures.totals)
    for sample in range(len(futures.first_token_s)):
        _reset(work, start)
        work.clock.until_first_token = sample > 0
        for slot in range(len(work.state.sequences)):
            total = limited(work.state, slot, futures.totals[sample, slot])
            work.state.sequences[slot].stop_after = total
        for slot in work.watched:
            work.state.sequences[slot].stop_after = work.marks[-1].tokens
        ended = roll(work, model, np.inf)
        futures.first_token_s[sample] = _first_token_s(work) if ended else np.inf
        if sample == 0:
            futures.preemptions[0], futures.steps[0] = work.clock.preemptions, work.clock.iterations
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
def _set_marks(state: State, work: Roll, lengths: Lengths) -> None:
    slot, count = work.watched[0], len(work.marks)
    for i in range(count):
        tokens = conditional_quantile(lengths.rows[slot], 0.0, (i + 0.5) / count)
        work.marks[i].tokens = limited(state, slot, round(tokens))


@compiled
def _reset(work: Roll, start: Roll) -> None:
    for slot in range(len(start.state.sequences)):
        work.state.sequences[slot] = start.state.sequences[slot]
    for i in range(start.state.engine.running):
        work.state.running[i] = start.state.running[i]
    for i in range(len(work.marks)):
        work.marks[i].at_s = -np.inf
    engine, first = work.state.engine, start.state.engine
    engine.running, engine.waiting = first.running, first.waiting
    engine.head, engine.tail = first.head, first.tail
    engine.free, engine.held = first.free, first.held
    clock, begin = work.clock, start.clock
    clock.now_s, clock.in_flight, clock.oldest = begin.now_s, begin.in_flight, 0
    clock.first_end_s, clock.last_end_s = begin.first_end_s, begin.last_end_s
    clock.next_arrival = clock.preemptions = clock.iterations = 0
    work.steady.sums.active = work.steady.sums.pause = 0
    for slot in range(len(work.steady.due)):
        work.steady.due[slot] = NEVER
    _copy_batch(work.batches[0], start.batches[0])
    _copy_batch(work.batches[1], start.batches[1])


@compiled
def _copy_batch(target: Batch, source: Batch) -> None:
    target.counts.scheduled = source.counts.scheduled
    for i in range(source.counts.scheduled):
        target.entries[i] = source.entries[i]
