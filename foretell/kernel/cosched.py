"""A step of an engine that has offline requests beside online ones (ADR 10).

Mirrors `services.backend.vllm.cosched`, for blocks without identity: who shares which blocks with
whom is not known, nor how often a waiting request was passed over. These decide only which offline
request is next; what online ones get does not depend on them.
"""

from typing import NamedTuple

from foretell.kernel.blocks import blocks_for
from foretell.kernel.cosched_admission import admit_offline
from foretell.kernel.cosched_plan import (
    decodes_now,
    fit,
    left_of,
    longest_s,
    pairs_of,
    with_decodes,
)
from foretell.kernel.jit import compiled, inlined
from foretell.kernel.layout import NONE, Batch, State
from foretell.kernel.queues import is_offline
from foretell.kernel.scheduling import (
    advance,
    long_prefill_threshold,
    preempt,
    schedule,
    schedule_running,
    schedule_waiting,
)
from foretell.kernel.step_time import StepTime, Sums


class _Plan(NamedTuple):
    shape: Sums
    """The step with the online requests and the offline ones that decode."""
    parked: int
    """Running offline requests without a token in this step."""
    prefill_left: int
    """Tokens for offline requests that are admitted; 0 where none may be."""
    tokens: int


@compiled
def schedule_beside(state: State, batch: Batch, model: StepTime, now_s: float) -> bool:
    """`scheduling.schedule` of an engine that tells offline requests from online ones."""
    if not has_offline(state):
        return schedule(state, batch)
    engine, counts = state.engine, batch.counts
    budget, seats = engine.max_num_scheduled_tokens, engine.max_num_seqs
    counts.scheduled = counts.admitted = counts.preempted = 0
    engine.encoder_budget = engine.max_num_encoder_input_tokens
    plan = _begin(state, batch, model, now_s)
    engine.max_num_scheduled_tokens = min(budget, plan.tokens)
    engine.max_num_seqs = max(0, seats - plan.parked)
    made, threshold = counts.preempted, long_prefill_threshold(state)
    token_budget = schedule_running(state, batch, threshold)
    if counts.preempted == made:
        token_budget = schedule_waiting(state, batch, token_budget, threshold)
        admit_offline(
            state, batch, model, plan.shape, plan.prefill_left, plan.parked, token_budget, threshold
        )
    engine.max_num_scheduled_tokens, engine.max_num_seqs = budget, seats
    _unpark(state, plan.parked)
    if counts.scheduled == 0 and counts.preempted == 0:
        return False
    advance(state, batch)
    return True


@inlined
def has_offline(state: State) -> bool:
    """Whether offline requests run or wait; those who wait stand behind all others."""
    engine = state.engine
    if not engine.co_schedules:
        return False
    found = engine.tail != NONE and is_offline(state, engine.tail)
    for i in range(engine.running):
        found = found or is_offline(state, state.running[i])
    return found


@compiled
def _begin(state: State, batch: Batch, model: StepTime, now_s: float) -> _Plan:
    """Make way for online requests, and leave offline ones what fits beside them."""
    engine = state.engine
    _sort(state, 0, False)
    online = 0
    while online < engine.running and not is_offline(state, state.running[online]):
        online += 1
    arriving = _make_room(state, batch, online)
    _sort(state, online, True)
    decodes = online
    while decodes < engine.running and decodes_now(state, state.running[decodes]):
        decodes += 1
    decodes -= online
    prefills = engine.running - online - decodes
    shape = _online_shape(state, online, arriving)
    behind, wanted = 0, 0
    if arriving == 0 and (prefills > 0 or engine.waiting > 0):
        wanted = engine.max_num_scheduled_tokens
    if prefills > 0:
        behind = state.sequences[state.running[online + decodes]].computed
    most_s = longest_s(state, model, online, arriving, shape, now_s)
    count, tokens = fit(
        state.sequences,
        state.running,
        model,
        shape,
        (online, decodes),
        (behind, wanted),
        engine.max_num_scheduled_tokens,
        most_s,
    )
    shape = with_decodes(state.sequences, state.running, shape, online, count)
    taken = 0
    if prefills > 0 and tokens > 0:
        taken = min(left_of(state, state.running[online + decodes]), tokens)
        _move(state, online + decodes, online + count)
    free_seats = engine.max_num_seqs - engine.running
    left = tokens - taken if arriving == 0 and free_seats > 0 else 0
    parked = engine.running - online - count - (taken > 0)
    _park(state, parked)
    scheduled = shape.prefill_tokens + shape.decode_seqs + tokens
    return _Plan(shape, parked, left, scheduled)


@compiled
def _sort(state: State, first: int, decodes_first: bool) -> None:
    """Online requests in front, then offline ones, those with the most computed tokens first.

    A stable insertion sort from `first` on: the list is all but sorted. `decodes_first`: those that
    decode before those whose prompt is not computed yet.
    """
    running = state.running
    for i in range(first + 1, state.engine.running):
        slot, place = running[i], i
        while place > first and _before(state, slot, running[place - 1], decodes_first):
            running[place] = running[place - 1]
            place -= 1
        running[place] = slot


@inlined
def _before(state: State, slot: int, other: int, decodes_first: bool) -> bool:
    if not is_offline(state, other):
        return False
    if not is_offline(state, slot):
        return True
    if decodes_first and decodes_now(state, slot) != decodes_now(state, other):
        return decodes_now(state, slot)
    return bool(state.sequences[slot].computed > state.sequences[other].computed)


@compiled
def _make_room(state: State, batch: Batch, online: int) -> int:
    """Preempt offline requests until online ones have blocks and seats; least work first.

    Returns the number of waiting online requests that the step has tokens for.
    """
    engine, counts = state.engine, batch.counts
    blocks = arriving = 0
    tokens, slot = engine.max_num_scheduled_tokens, engine.head
    while slot != NONE and tokens > 0 and not is_offline(state, slot):
        seq = state.sequences[slot]
        known = seq.prompt + seq.output
        tokens -= known
        blocks += blocks_for(state, known)
        arriving += 1
        slot = seq.next
    for i in range(online):
        seq = state.sequences[state.running[i]]
        new = min(left_of(state, state.running[i]), engine.max_num_scheduled_tokens)
        blocks += max(0, blocks_for(state, seq.computed + new) - seq.blocks)
    if arriving > 0:
        blocks += engine.watermark_blocks
    while engine.running > online and (
        engine.free < blocks or engine.max_num_seqs - engine.running < arriving
    ):
        batch.entries[counts.preempted].preempted = state.running[engine.running - 1]
        counts.preempted += 1
        preempt(state, engine.running - 1)
    return arriving


@compiled
def _online_shape(state: State, online: int, arriving: int) -> Sums:
    """What online requests could compute in this step, hits of the prefix cache apart."""
    engine = state.engine
    left = engine.max_num_scheduled_tokens
    seqs = tokens = pairs = decodes = decode_pairs = 0
    for i in range(online):
        slot = state.running[i]
        computed, new = state.sequences[slot].computed, min(left, left_of(state, slot))
        if new <= 0:
            continue
        left -= new
        if new == 1 and decodes_now(state, slot):
            decodes += 1
            decode_pairs += computed + 1
        else:
            seqs += 1
            tokens += new
            pairs += pairs_of(new, computed)
    slot = engine.head
    for _ in range(arriving):
        seq = state.sequences[slot]
        new = min(left, seq.prompt + seq.output)
        if new <= 0:
            break
        left -= new
        seqs += 1
        tokens += new
        pairs += pairs_of(new, 0)
        slot = seq.next
    return Sums(seqs, tokens, pairs, decodes, decode_pairs, 0)


@inlined
def _move(state: State, place: int, to: int) -> None:
    """Move the running request at `place` forward."""
    slot = state.running[place]
    for i in range(place, to, -1):
        state.running[i] = state.running[i - 1]
    state.running[to] = slot


@inlined
def _park(state: State, count: int) -> None:
    """Take the last `count` off the running list: they wait at the end of its array."""
    running, shift = state.running, len(state.running) - state.engine.running
    for i in range(len(running) - 1, len(running) - 1 - count, -1):
        running[i] = running[i - shift]
    state.engine.running -= count


@inlined
def _unpark(state: State, count: int) -> None:
    engine, first = state.engine, len(state.running) - count
    for i in range(count):
        state.running[engine.running + i] = state.running[first + i]
    engine.running += count
