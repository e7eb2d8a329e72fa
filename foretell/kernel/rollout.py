"""An engine run forward in time: its loop, the seconds of its steps, and who arrives meanwhile."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.cosched import has_offline
from foretell.kernel.drafts import NO_PADDING
from foretell.kernel.jit import compiled, inlined
from foretell.kernel.layout import ENDED, EXPECTED, NONE, State
from foretell.kernel.loop import Loop, batch_s, end_oldest, land, launch, newest, schedule_next
from foretell.kernel.queues import enqueue, is_offline
from foretell.kernel.scheduling import admissible_tokens, long_prefill_threshold
from foretell.kernel.steady import (
    NEVER,
    Steady,
    advance_steady,
    can_schedule,
    deliver,
    enter,
    iterations_that_fit,
    join_sampled,
    leave,
    output_of,
    schedule_rest,
    take_blocks,
)
from foretell.kernel.step_time import StepTime, decode_run_s, step_s

MAX_ROUNDS = 200_000
"""Rounds after which a rollout gives up: a safety bound that no real engine reaches."""

MARK = np.dtype([("tokens", np.int64), ("at_s", np.float64)])
"""A count of output tokens, and when the last of the watched slots that get so far has so many."""


class Roll(NamedTuple):
    """Everything a rollout works on."""

    loop: Loop
    arrivals: NDArray[np.int32]
    """Slots of the requests that are still to arrive, in the order of their `arrival_s`."""
    watched: NDArray[np.int32]
    """The rollout ends when all of these slots have ended, or see `until_first_token`."""
    marks: NDArray[np.void]
    """Rows of `MARK`, ascending."""
    steady: Steady


@compiled
def roll(r: Roll, model: StepTime, until_s: float) -> bool:
    """Run until the watched have ended or the clock has reached `until_s`.

    False if neither can happen: what is left can never run.
    """
    clock, sums, arrives = r.loop.clock, r.steady.sums, False
    for _ in range(MAX_ROUNDS):
        _admit_arrivals(r)
        arrives = clock.now_s >= until_s or _seen_enough(r)
        if arrives:
            break
        if (sums.active or _enter(r)) and _iterate_steady(r, model, until_s):
            continue
        _leave(r)
        if not _iterate(r, model):
            break
    _leave(r)
    return arrives


@inlined
def _enter(r: Roll) -> bool:
    clock, state = r.loop.clock, r.loop.state
    if clock.in_flight != state.engine.depth - 1 or has_offline(state):
        return False
    if state.engine.encoding > 0:  # who computes multimodal inputs may have to stop before one
        return False
    return enter(state, r.steady, r.loop.batches[clock.oldest])


@compiled
def _leave(r: Roll) -> None:
    if r.steady.sums.active:
        leave(r.loop.state, r.steady, r.loop.batches[r.loop.clock.oldest])


@inlined
def _seen_enough(r: Roll) -> bool:
    for slot in r.watched:
        seq = r.loop.state.sequences[slot]
        if r.loop.clock.until_first_token and seq.first_token_s < np.inf:
            return True
        if not r.loop.clock.until_first_token and seq.status != ENDED:
            return False
    return len(r.watched) > 0 and not r.loop.clock.until_first_token


@inlined
def _admit_arrivals(r: Roll) -> None:
    clock, sequences = r.loop.clock, r.loop.state.sequences
    while clock.next_arrival < len(r.arrivals):
        slot = r.arrivals[clock.next_arrival]
        if sequences[slot].arrival_s > clock.now_s:
            return
        clock.next_arrival += 1
        if sequences[slot].status == EXPECTED:
            if is_offline(r.loop.state, slot):
                _leave(r)
            enqueue(r.loop.state, slot)


@inlined
def _next_arrival_s(r: Roll) -> float:
    clock = r.loop.clock
    if clock.next_arrival >= len(r.arrivals):
        return np.inf
    return r.loop.state.sequences[r.arrivals[clock.next_arrival]].arrival_s


@compiled
def _iterate(r: Roll, model: StepTime) -> bool:
    """Run one iteration of the engine's loop; False when nothing can ever run again."""
    loop, clock = r.loop, r.loop.clock
    if schedule_next(loop, model):
        counts = loop.batches[newest(loop)].counts
        launch(loop, batch_s(model, counts))
        if clock.in_flight < loop.state.engine.depth and counts.scheduled > 0:
            return True
    if clock.in_flight > 0:
        land(loop)
        _note(r)
        return True
    if clock.next_arrival >= len(r.arrivals):
        return False
    clock.now_s = max(clock.now_s, _next_arrival_s(r))
    return True


@inlined
def _iterate_steady(r: Roll, model: StepTime, until_s: float) -> bool:
    """Run one iteration or many, the steady requests in bulk; False where that cannot be done."""
    state, clock, steady = r.loop.state, r.loop.clock, r.steady
    only_steady = steady.sums.scheduled > 0 and steady.sums.members == state.engine.running
    if only_steady and not _may_admit(state, steady):
        return _fast_forward(r, model, until_s)
    if not can_schedule(state, steady, long_prefill_threshold(state)):
        return False
    step = r.loop.batches[newest(r.loop)]
    scheduled = schedule_rest(state, steady, step)
    if scheduled:
        launch(r.loop, batch_s(model, step.counts))
    if clock.in_flight == 0:
        return False
    batch = r.loop.batches[clock.oldest]
    end_oldest(r.loop)
    deliver(state, steady, batch, clock.now_s)
    advance_steady(state, steady, 1, clock.now_s)
    in_order = not scheduled or join_sampled(state, steady, step)
    _note(r)
    if not in_order or clock.in_flight != state.engine.depth - 1 or state.engine.encoding > 0:
        _leave(r)
    return True


@inlined
def _may_admit(state: State, steady: Steady) -> bool:
    """Whether a waiting request would be admitted beside those that decode, now or a little later.

    Later steps of the same kind find fewer free blocks: who does not fit now will not fit then,
    unless windows leave blocks behind. What chunks leave behind is an event.
    """
    engine = state.engine
    token_budget = engine.max_num_scheduled_tokens - steady.sums.scheduled
    if engine.head == NONE or token_budget <= 0 or engine.running >= engine.max_num_seqs:
        return False
    if steady.sums.sliding > 0 or steady.sums.given_up > 0:
        return True
    head = state.sequences[engine.head]
    if head.inputs > 0:  # to try it changes the encoder cache
        return True
    hits = min(head.hits, (head.prompt + head.output - 1) // engine.block_size)
    threshold = long_prefill_threshold(state)
    return admissible_tokens(state, engine.head, token_budget, threshold, hits, NO_PADDING) > 0


@inlined
def _arrivals_matter(state: State) -> bool:
    """Whether a request that arrives may be admitted, or only joins a queue that stands still."""
    engine = state.engine
    stands_still = engine.head != NONE and not engine.by_priority
    return not stands_still and engine.running < engine.max_num_seqs


@inlined
def _fast_forward(r: Roll, model: StepTime, until_s: float) -> bool:
    """Take all iterations up to the next event at once; False if there are no blocks for one."""
    state, clock, steady = r.loop.state, r.loop.clock, r.steady
    sums, ahead = steady.sums, state.engine.depth - 1
    if sums.scheduled > state.engine.max_num_scheduled_tokens:
        return False
    steps = iterations_that_fit(state, steady, sums.next_event - sums.iteration)
    if steps == 0:
        return False
    count, pairs = sums.scheduled, sums.pairs
    # The run's first step begins here, and its output is applied `ahead` iterations later.
    begin_s = clock.last_end_s if ahead > 0 else clock.now_s
    stop_s = min(until_s, _next_arrival_s(r)) if _arrivals_matter(state) else until_s
    if stop_s < np.inf:
        steps = ahead + _steps_until(model, count, pairs, stop_s - begin_s, steps - ahead)
    if ahead > 0:
        in_flight = r.loop.batches[clock.oldest]
        deliver(state, steady, in_flight, begin_s)
        in_flight.counts.scheduled = 0  # the steps to come hold none but steady ones
    _note_run(r, model, begin_s, steps)
    take_blocks(state, steady, steps)
    clock.now_s = clock.last_end_s = begin_s + _run_s(model, count, pairs, steps - ahead)
    if ahead > 0:
        clock.last_end_s += step_s(model, 0, 0, 0, count, pairs + (steps - 1) * count, 0)
    clock.first_end_s = clock.last_end_s
    clock.iterations += steps
    advance_steady(state, steady, steps, clock.now_s)
    return True


@inlined
def _run_s(model: StepTime, count: int, pairs: int, steps: int) -> float:
    return decode_run_s(model, count, pairs, steps) if steps > 0 else 0.0


@compiled
def _steps_until(model: StepTime, count: int, pairs: int, seconds: float, most: int) -> int:
    """The least number of steps, up to `most`, that take `seconds`; 0 if that has passed.

    A run's time is nearly proportional to its steps, so each guess is all but right.
    """
    if seconds <= 0.0 or most <= 0:
        return 0
    low, high = 0, most  # as far as is known: too few, and enough or `most`
    guess = int(seconds / step_s(model, 0, 0, 0, count, pairs, 0))
    while high - low > 1:
        guess = max(low + 1, min(guess, high - 1))
        took = decode_run_s(model, count, pairs, guess)
        if took >= seconds:
            high = guess
        else:
            low = guess
        next_guess = int(guess * seconds / took)
        guess = next_guess + (took < seconds) if next_guess == guess else next_guess
    return high


@inlined
def _note(r: Roll) -> None:
    """Note the marks that the watched have passed by now."""
    for slot in r.watched:
        seq, output = r.loop.state.sequences[slot], output_of(r.loop.state, r.steady, slot)
        if output > seq.noted:
            for mark in r.marks:
                if seq.noted < mark.tokens <= output:
                    mark.at_s = max(mark.at_s, r.loop.clock.now_s)
            seq.noted = output


@inlined
def _note_run(r: Roll, model: StepTime, begin_s: float, steps: int) -> None:
    """Note the marks that the watched pass in a run of steps about to be taken, and when."""
    ahead, sums = r.loop.state.engine.depth - 1, r.steady.sums
    for slot in r.watched:
        seq, output = r.loop.state.sequences[slot], output_of(r.loop.state, r.steady, slot)
        if r.steady.due[slot] == NEVER:
            continue
        for mark in r.marks:
            if output < mark.tokens <= output + steps:
                after = _run_s(model, sums.scheduled, sums.pairs, mark.tokens - output - ahead)
                mark.at_s = max(mark.at_s, begin_s + after)
        seq.noted = output + steps
