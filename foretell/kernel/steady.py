"""Decoding requests in bulk: an iteration costs what changes, not what runs.

A request that decodes changes in the same way in every iteration: one token more, now and then a
block, until an end that is known beforehand. While nobody can be preempted, all such requests, the
*steady* ones, are therefore kept as sums, and only who is prefilled, admitted or ends is touched.
The state of a steady request is what it was when it entered, and the number of iterations since;
`leave` writes it out. Whatever the sums cannot tell (a shortage of blocks, an unusual order) is
left to the scheduler proper, which does the same one request at a time.

Needs blocks without content, and no drafts. Iterations are those of `rollout`:
schedule one step, apply the output of the oldest in flight.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.blocks import blocks_for, grow, held_by, left_behind, release
from foretell.kernel.encoder import free_inputs, free_processed
from foretell.kernel.jit import compiled, inlined
from foretell.kernel.layout import ENDED, WAITING, Batch, Record, State
from foretell.kernel.pool import take
from foretell.kernel.queues import drop_ended
from foretell.kernel.scheduling import (
    advance,
    long_prefill_threshold,
    schedule_waiting,
    wanted_tokens,
)

NEVER = np.iinfo(np.int32).max

SUMS = np.dtype(
    [
        ("active", np.int64),
        ("iteration", np.int64),  # since `enter`
        ("next_event", np.int64),  # the next iteration after which a steady request changes
        ("members", np.int64),  # steady requests, the first of the running list
        ("scheduled", np.int64),  # those that the next iteration schedules
        ("pairs", np.int64),  # their query-key pairs in it
        ("sliding", np.int64),  # those of them whose windows leave blocks behind
        ("given_up", np.int64),  # KV blocks of chunks that the next iteration leaves behind
    ]
)


class Steady(NamedTuple):
    """The sums, and for each slot the iteration in which a steady request changes."""

    sums: Record
    due: NDArray[np.int32]
    """The iteration after which a slot has its next event; `NEVER` where it is not steady."""
    opening: NDArray[np.int32]
    """Scheduled requests by residue: those of residue h open a block in iteration i where h + i - 1
    is a multiple of the block size."""
    leaving: NDArray[np.int32]
    """Scheduled requests by residue, likewise: their windows leave a block of each local group."""


@compiled
def enter(state: State, steady: Steady, in_flight: Batch) -> bool:
    """Make all that decode steady; False, and nothing changed, where the rest is no prefill.

    With a step in flight, `in_flight`, who decodes must have a token in it.
    """
    engine, sums, ahead = state.engine, steady.sums, state.engine.depth - 1
    if engine.knows_content or engine.drafts > 0:
        return False
    if ahead > 0 and _delivers_to_waiting(state, in_flight):
        return False
    members = 0
    for i in range(engine.running):
        seq = state.sequences[state.running[i]]
        known = seq.prompt + seq.output
        decodes = seq.output > 0 and seq.computed == known - 1 + ahead
        if members == i and decodes and seq.placeholders == ahead:
            if seq.blocks != blocks_for(state, seq.computed) or not _in_step(state, seq):
                return False
            members += 1
        elif seq.placeholders > 0 or seq.computed >= known:
            return False
    if members == 0:
        return False
    sums.active, sums.iteration, sums.members = 1, 0, members
    sums.scheduled, sums.pairs, sums.sliding, sums.next_event = 0, 0, 0, NEVER
    sums.given_up = 0
    for i in range(len(steady.opening)):
        steady.opening[i] = steady.leaving[i] = 0
    for i in range(members):
        _join(state, steady, state.running[i])
    return True


@compiled
def leave(state: State, steady: Steady, in_flight: Batch) -> None:
    """Write every steady request out; with a step in flight, also who takes part in it."""
    engine, sums, counts = state.engine, steady.sums, in_flight.counts
    now, ahead = sums.iteration, engine.depth - 1
    for i in range(sums.members):
        slot = state.running[i]
        seq = state.sequences[slot]
        if now > seq.entered:
            seq.output += now - seq.entered
            steps = min(now, seq.last) - seq.entered
            seq.left = _left(state, seq, steps)
            seq.computed += steps
            seq.blocks = blocks_for(state, seq.computed)
            seq.placeholders = seq.in_flight = ahead
            seq.is_prefill_chunk = 0
            if ahead > 0 and seq.last >= now:
                entry = in_flight.entries[counts.scheduled]
                entry.slot, entry.tokens, entry.samples = slot, 1, 1
                counts.scheduled += 1
        steady.due[slot] = NEVER
    sums.active, sums.members = 0, 0


@inlined
def can_schedule(state: State, steady: Steady, threshold: int) -> bool:
    """Whether the next iteration preempts nobody and serves the steady requests first."""
    engine, sums = state.engine, steady.sums
    token_budget = engine.max_num_scheduled_tokens - sums.scheduled
    # Whether there is room must not depend on who leaves a block behind before another takes it.
    blocks = steady.opening[-sums.iteration % engine.block_size]
    if token_budget < 0:
        return False
    for i in range(sums.members, engine.running):
        slot = state.running[i]
        tokens = wanted_tokens(state, slot, threshold, token_budget)
        if tokens <= 0:
            break
        seq = state.sequences[slot]
        blocks += max(0, blocks_for(state, seq.computed + tokens) - seq.blocks)
        token_budget -= tokens
    return engine.groups * blocks <= engine.free


@inlined
def schedule_rest(state: State, steady: Steady, batch: Batch) -> bool:
    """Schedule the steady ones in the sums and all others in `batch`; False for an empty step.

    Only where `can_schedule`.
    """
    engine, sums, counts = state.engine, steady.sums, batch.counts
    threshold = long_prefill_threshold(state)
    counts.scheduled = counts.admitted = counts.preempted = 0
    token_budget = engine.max_num_scheduled_tokens - sums.scheduled
    take(state, _blocks_taken(state, steady, sums.iteration) - sums.given_up)
    sums.given_up = 0
    engine.encoder_budget = engine.max_num_encoder_input_tokens
    for i in range(sums.members, engine.running):
        slot = state.running[i]
        tokens = wanted_tokens(state, slot, threshold, token_budget)
        if tokens <= 0:
            break
        grown = grow(state, slot, state.sequences[slot].computed + tokens)
        assert grown, "blocks were counted"
        entry = batch.entries[counts.scheduled]
        entry.slot, entry.tokens = slot, tokens
        counts.scheduled += 1
        token_budget -= tokens
    schedule_waiting(state, batch, token_budget, threshold)
    advance(state, batch)
    counts.decode_seqs += sums.scheduled
    counts.decode_pairs += sums.pairs
    return counts.prefill_seqs + counts.decode_seqs > 0


@inlined
def deliver(state: State, steady: Steady, batch: Batch, now_s: float) -> None:
    """Apply the output of the oldest step, of which `batch` holds all but the steady ones."""
    ahead, ended = state.engine.depth - 1, False
    for i in range(batch.counts.scheduled):
        entry = batch.entries[i]
        seq = state.sequences[entry.slot]
        if seq.status == ENDED:
            continue
        if entry.samples and seq.output == 0:
            seq.first_token_s = now_s
        if ahead > 0 and steady.due[entry.slot] != NEVER:
            continue  # by now it is steady
        seq.in_flight -= entry.tokens
        if seq.encoding > 0:
            free_processed(state, entry.slot, 0)
        if not entry.samples:
            continue
        seq.output += 1
        seq.placeholders -= 1
        if seq.output >= seq.stop_after or seq.prompt + seq.output >= state.engine.max_model_len:
            release(state, entry.slot)
            if seq.encoding > 0:
                free_inputs(state, entry.slot)
            seq.status, seq.finished_s, ended = ENDED, now_s, True
    if ended:
        drop_ended(state)


@inlined
def advance_steady(state: State, steady: Steady, iterations: int, now_s: float) -> None:
    """Count `iterations` up to the next event as done; who ends in the last, ends at `now_s`."""
    sums = steady.sums
    sums.iteration += iterations
    sums.pairs += sums.scheduled * iterations
    if sums.iteration < sums.next_event:
        return
    now, following, ended = sums.iteration, NEVER, 0
    for i in range(sums.members):
        slot = state.running[i]
        if steady.due[slot] == now:
            ended += _event(state, steady, slot, now_s)
        following = min(following, steady.due[slot])
    sums.next_event = following
    if ended > 0:
        sums.members -= ended
        drop_ended(state)


@inlined
def join_sampled(state: State, steady: Steady, batch: Batch) -> bool:
    """Make the requests of the newest step, `batch`, that begin to decode steady.

    False where one of them stands behind one that does not: the sums cannot tell their order. Also
    where what its window will leave behind is not as regular yet.
    """
    engine, sums = state.engine, steady.sums
    for i in range(batch.counts.scheduled):
        entry = batch.entries[i]
        if not entry.samples or state.sequences[entry.slot].status == ENDED:
            continue
        if sums.members == engine.running or state.running[sums.members] != entry.slot:
            return False
        if not _in_step(state, state.sequences[entry.slot]):
            return False
        sums.members += 1
        _join(state, steady, entry.slot)
    return True


@inlined
def output_of(state: State, steady: Steady, slot: int) -> int:
    """The tokens that `slot` has generated."""
    seq = state.sequences[slot]
    since = 0 if steady.due[slot] == NEVER else steady.sums.iteration - seq.entered
    return seq.output + since


@inlined
def iterations_that_fit(state: State, steady: Steady, most: int) -> int:
    """The number of the next `most` iterations for whose new blocks there is room."""
    engine, sums = state.engine, steady.sums
    cycles = most // engine.block_size
    if (cycles + 1) * engine.groups * sums.scheduled <= engine.free:
        return most
    free = engine.free
    for i in range(most):
        if engine.groups * steady.opening[-(sums.iteration + i) % engine.block_size] > free:
            return i
        free -= _blocks_taken(state, steady, sums.iteration + i)
        if i == 0:
            free += sums.given_up
    return most


@inlined
def take_blocks(state: State, steady: Steady, iterations: int) -> None:
    """Give steady requests the blocks that they open in the next `iterations`.

    Less those that they leave behind.
    """
    engine, sums = state.engine, steady.sums
    cycle = engine.groups * sums.scheduled - engine.local_groups * sums.sliding
    blocks = iterations // engine.block_size * cycle - sums.given_up
    sums.given_up = 0
    for i in range(iterations % engine.block_size):
        blocks += _blocks_taken(state, steady, sums.iteration + i)
    take(state, blocks)


@inlined
def _blocks_taken(state: State, steady: Steady, iteration: int) -> int:
    """The blocks that steady requests open in an iteration, less those that they leave behind."""
    engine, residue = state.engine, -iteration % state.engine.block_size
    return engine.groups * steady.opening[residue] - engine.local_groups * steady.leaving[residue]


@inlined
def _in_step(state: State, seq: Record) -> bool:
    """Whether its window will leave behind a block at a time, as that of a request that decodes."""
    ahead = state.engine.depth - 1
    if seq.left == 0 and left_behind(state, max(0, seq.computed - ahead)) == 0:
        return True
    return seq.in_flight == ahead and seq.left == left_behind(state, seq.computed - ahead - 1)


@inlined
def _left(state: State, seq: Record, steps: int) -> int:
    """The blocks that a steady request has left behind when so many steps have been scheduled."""
    if state.engine.local_groups == 0 or steps <= 0:
        return seq.left
    processed = seq.computed + steps - 1 - (state.engine.depth - 1)
    return max(seq.left, left_behind(state, processed))


@inlined
def _slides_from(state: State, seq: Record) -> int:
    """The iteration from which on the window of a steady request slides; `NEVER` without one."""
    if state.engine.local_groups == 0 or state.engine.chunk > 0:
        return NEVER
    processed = seq.computed - (state.engine.depth - 1)
    return seq.entered + max(0, state.engine.window - processed)


@inlined
def _slide(state: State, steady: Steady, seq: Record, count: int) -> None:
    """One request more (or, with -1, less) leaves blocks behind."""
    first = seq.computed - (state.engine.depth - 1) - state.engine.window + 1
    steady.leaving[(first - seq.entered) % state.engine.block_size] += count
    steady.sums.sliding += count


@inlined
def _next_chunk(state: State, seq: Record, iteration: int) -> int:
    """The iteration after `iteration` that leaves a chunk behind; `NEVER` without chunks."""
    chunk = state.engine.chunk
    if state.engine.local_groups == 0 or chunk == 0:
        return NEVER
    processed = seq.computed - (state.engine.depth - 1) + iteration - seq.entered
    return iteration + chunk - processed % chunk


@inlined
def _give_up(state: State, steady: Steady, seq: Record, left: int) -> None:
    """The next iteration leaves behind what a chunk holds of a request that has left `left`."""
    processed = seq.computed - (state.engine.depth - 1) + steady.sums.iteration - seq.entered
    blocks = left_behind(state, processed) - left
    steady.sums.given_up += state.engine.local_groups * max(0, blocks)


@compiled
def _join(state: State, steady: Steady, slot: int) -> None:
    engine, sums, seq = state.engine, steady.sums, state.sequences[slot]
    ahead, now = engine.depth - 1, sums.iteration
    room = engine.max_model_len - seq.prompt - seq.output
    tokens = min(seq.stop_after - seq.output, room)
    scheduled = min(tokens, room - ahead)
    if ahead > 0 and seq.max_tokens > 0:
        # Foreseen to end, it is left out of the step behind that of its last token.
        scheduled = min(scheduled, seq.max_tokens - seq.output - ahead)
    seq.entered, seq.last, seq.end = now, now + scheduled, now + tokens
    if scheduled > 0:
        slides_from = _slides_from(state, seq)
        if slides_from <= now:
            _slide(state, steady, seq, 1)
        steady.due[slot] = slides_from if now < slides_from < seq.last else seq.last
        if engine.chunk > 0:
            _give_up(state, steady, seq, seq.left)
            steady.due[slot] = min(seq.last, _next_chunk(state, seq, now))
        sums.scheduled += 1
        sums.pairs += seq.computed + 1
        steady.opening[(seq.computed - now) % engine.block_size] += 1
    else:
        steady.due[slot] = seq.end
    sums.next_event = min(sums.next_event, steady.due[slot])


@inlined
def _event(state: State, steady: Steady, slot: int, now_s: float) -> bool:
    """Do what is due for `slot` after the iteration; returns whether it ends."""
    engine, sums, seq = state.engine, steady.sums, state.sequences[slot]
    if sums.iteration < seq.last:
        if engine.chunk > 0:
            _give_up(state, steady, seq, _left(state, seq, sums.iteration - seq.entered))
            steady.due[slot] = min(seq.last, _next_chunk(state, seq, sums.iteration))
        else:
            _slide(state, steady, seq, 1)
            steady.due[slot] = seq.last
        return False
    computed = seq.computed + seq.last - seq.entered
    if seq.last == sums.iteration and seq.last > seq.entered:
        sums.scheduled -= 1
        sums.pairs -= computed + 1
        steady.opening[(seq.computed - seq.entered) % engine.block_size] -= 1
        if _slides_from(state, seq) < seq.last:
            _slide(state, steady, seq, -1)
    steady.due[slot] = seq.end
    if seq.end > sums.iteration:
        return False
    left = _left(state, seq, seq.last - seq.entered)
    take(state, -held_by(state, blocks_for(state, computed), left))
    steady.due[slot], seq.blocks, seq.left = NEVER, 0, 0
    seq.output += seq.end - seq.entered
    seq.status, seq.finished_s = ENDED, now_s
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
