"""An engine run forward in time: the scheduler's iterations and the seconds its steps take.

The loop is that of `EngineCore.step`, or with async scheduling of `step_with_batch_queue`
(vllm/v1/engine/core.py, 0.32), on a device that runs one step after the other: step k + 1 is
scheduled when the output of k - 1 is applied, and begins when k ends.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.forward import advance_decode, decode_run
from foretell.kernel.jit import compiled, inlined
from foretell.kernel.layout import ENDED, EXPECTED, WAITING, Batch, Record, State
from foretell.kernel.output import complete
from foretell.kernel.queues import enqueue
from foretell.kernel.scheduling import schedule
from foretell.kernel.step_time import StepTime, decode_run_s, step_s

MAX_ROUNDS = 200_000
"""Rounds after which a rollout gives up; a bound, not a tuning knob."""
_MOST_STEPS = 1 << 30

CLOCK = np.dtype(
    [
        ("now_s", np.float64),
        ("first_end_s", np.float64),  # of the steps in flight, the older one's end
        ("last_end_s", np.float64),  # the younger one's
        ("in_flight", np.int64),
        ("oldest", np.int64),  # which of the two batches that is
        ("next_arrival", np.int64),
        ("preemptions", np.int64),
        ("iterations", np.int64),  # steps completed
    ]
)


MARK = np.dtype([("tokens", np.int64), ("at_s", np.float64)])
"""A count of output tokens, and when the last of the watched slots that get so far has so many."""


class Roll(NamedTuple):
    """Everything a rollout works on."""

    state: State
    batches: tuple[Batch, Batch]
    clock: Record
    """A record of `CLOCK`."""
    arrivals: NDArray[np.int32]
    """Slots that are still expected, in the order of their `arrival_s`."""
    watched: NDArray[np.int32]
    """The rollout ends when all of these slots have ended."""
    marks: NDArray[np.void]
    """Ascending."""


@compiled
def roll(r: Roll, model: StepTime, until_s: float) -> bool:
    """Run until the watched have ended or the clock has reached `until_s`.

    False if neither can happen: what is left can never run.
    """
    clock = r.clock
    for _ in range(MAX_ROUNDS):
        _admit_arrivals(r)
        if clock.now_s >= until_s or _all_ended(r):
            return True
        if not _fast_forward(r, model, until_s) and not _iterate(r, model):
            return False
    return False


@inlined
def _all_ended(r: Roll) -> bool:
    for slot in r.watched:
        if r.state.sequences[slot].status != ENDED:
            return False
    return len(r.watched) > 0


@compiled
def _admit_arrivals(r: Roll) -> None:
    clock, sequences = r.clock, r.state.sequences
    while clock.next_arrival < len(r.arrivals):
        slot = r.arrivals[clock.next_arrival]
        if sequences[slot].arrival_s > clock.now_s:
            return
        clock.next_arrival += 1
        if sequences[slot].status == EXPECTED:
            enqueue(r.state, slot)


@inlined
def _next_arrival_s(r: Roll) -> float:
    clock = r.clock
    if clock.next_arrival >= len(r.arrivals):
        return np.inf
    return r.state.sequences[r.arrivals[clock.next_arrival]].arrival_s


@compiled
def _iterate(r: Roll, model: StepTime) -> bool:
    """One iteration of the engine's loop; False when nothing can ever run again."""
    state, clock = r.state, r.clock
    depth = state.engine.depth
    if clock.in_flight < depth and state.engine.running + state.engine.waiting > 0:
        batch = r.batches[(clock.oldest + clock.in_flight) % 2]
        if schedule(state, batch):
            _launch(r, model, batch)
            if clock.in_flight < depth and batch.counts.scheduled > 0:
                return True
    if clock.in_flight > 0:
        _land(r)
        return True
    if clock.next_arrival >= len(r.arrivals):
        return False
    clock.now_s = max(clock.now_s, _next_arrival_s(r))
    return True


@compiled
def _launch(r: Roll, model: StepTime, batch: Batch) -> None:
    """The step just scheduled begins when the device is free."""
    clock, counts = r.clock, batch.counts
    seconds = 0.0  # of a step without tokens, which preempted somebody and runs no model
    if counts.scheduled > 0:
        seconds = step_s(
            model,
            counts.prefill_seqs,
            counts.prefill_tokens,
            counts.prefill_pairs,
            counts.decode_seqs,
            counts.decode_pairs,
        )
    begin = clock.now_s if clock.in_flight == 0 else max(clock.now_s, clock.last_end_s)
    clock.last_end_s = begin + seconds
    if clock.in_flight == 0:
        clock.first_end_s = clock.last_end_s
    clock.in_flight += 1
    clock.preemptions += counts.preempted


@compiled
def _land(r: Roll) -> None:
    """The oldest step in flight ends, and its output is applied."""
    clock = r.clock
    batch = r.batches[clock.oldest]
    clock.now_s = max(clock.now_s, clock.first_end_s)
    complete(r.state, batch, clock.now_s)
    clock.oldest = 1 - clock.oldest
    clock.in_flight -= 1
    clock.first_end_s = clock.last_end_s
    clock.iterations += 1
    if len(r.marks) > 0:
        for slot in r.watched:
            output = r.state.sequences[slot].output
            for i in range(len(r.marks)):
                if r.marks[i].tokens == output and r.marks[i].at_s < clock.now_s:
                    r.marks[i].at_s = clock.now_s


@compiled
def _fast_forward(r: Roll, model: StepTime, until_s: float) -> bool:
    """Take a run of identical decode steps at once; False when the next step may differ."""
    state, clock = r.state, r.clock
    engine = state.engine
    ahead = engine.depth - 1
    if clock.in_flight != ahead:
        return False
    if ahead > 0 and _delivers_to_waiting(state, r.batches[clock.oldest]):
        return False
    steps, pairs = decode_run(state, _MOST_STEPS)
    if steps == 0:
        return False
    count = engine.running
    # The run's first step begins here, and its output is applied `ahead` iterations later.
    begin_s = clock.last_end_s if ahead > 0 else clock.now_s
    stop_s = min(until_s, _next_arrival_s(r))
    if stop_s < np.inf:
        steps = _steps_until(model, count, pairs, stop_s - begin_s, steps - ahead) + ahead
    _mark_run(r, model, pairs, begin_s, steps)
    clock.now_s = begin_s + _run_s(model, count, pairs, steps - ahead)
    clock.last_end_s = begin_s + _run_s(model, count, pairs, steps)
    clock.first_end_s = clock.last_end_s
    advance_decode(state, steps, r.batches[clock.oldest], clock.now_s)
    clock.iterations += steps
    return True


@compiled
def _delivers_to_waiting(state: State, batch: Batch) -> bool:
    """Whether a step in flight will sample tokens for somebody who was preempted since."""
    if batch.counts.scheduled == state.engine.running:
        return False
    for i in range(batch.counts.scheduled):
        if state.sequences[batch.entries[i].slot].status == WAITING:
            return True
    return False


@inlined
def _run_s(model: StepTime, count: int, pairs: int, steps: int) -> float:
    return decode_run_s(model, count, pairs, steps) if steps > 0 else 0.0


@compiled
def _steps_until(model: StepTime, count: int, pairs: int, seconds: float, most: int) -> int:
    """The fewest steps, up to `most`, that take at least `seconds`; 0 if that has passed."""
    if seconds <= 0.0 or most <= 0:
        return min(most, 0 if seconds <= 0.0 else most)
    if decode_run_s(model, count, pairs, most) <= seconds:
        return most
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if decode_run_s(model, count, pairs, middle) >= seconds:
            high = middle
        else:
            low = middle + 1
    return low


@compiled
def _mark_run(r: Roll, model: StepTime, pairs: int, begin_s: float, steps: int) -> None:
    """Note when the watched pass the marks within a run that is about to be taken."""
    engine = r.state.engine
    ahead = engine.depth - 1
    if len(r.marks) == 0:
        return
    for slot in r.watched:
        seq = r.state.sequences[slot]
        if seq.placeholders != ahead or seq.output == 0 or seq.status == ENDED:
            continue
        for i in range(len(r.marks)):
            tokens = r.marks[i].tokens - seq.output
            if 0 < tokens <= steps:
                at_s = begin_s + _run_s(model, engine.running, pairs, tokens - ahead)
                r.marks[i].at_s = max(r.marks[i].at_s, at_s)
