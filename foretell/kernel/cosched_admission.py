"""Which waiting offline requests are admitted: `foretell.cosched.selector`, over arrays."""

import numpy as np

from foretell.kernel.blocks import blocks_for
from foretell.kernel.cosched_plan import shape_s, with_prefill
from foretell.kernel.drafts import NO_PADDING
from foretell.kernel.jit import compiled, inlined
from foretell.kernel.layout import NONE, Batch, State
from foretell.kernel.offline import worth
from foretell.kernel.queues import is_offline
from foretell.kernel.scheduling import admit_one
from foretell.kernel.step_time import StepTime, Sums

_echo_worth = compiled(worth)


@compiled
def admit_offline(
    state: State,
    batch: Batch,
    model: StepTime,
    shape: Sums,
    left: int,
    parked: int,
    token_budget: int,
    threshold: int,
) -> None:
    """Admit offline requests while there are tokens for their prompts: the best one first.

    The step has `shape` without them and `left` tokens for them; of those that run, `parked` are
    not on the list of the running.
    """
    engine = state.engine
    while left > 0 and token_budget > 0 and engine.running < engine.max_num_seqs:
        slot = _best(state, model, shape, left, parked)
        if slot == NONE:
            return
        tokens = admit_one(state, batch, slot, token_budget, threshold, NO_PADDING)
        if tokens == 0:
            return
        token_budget -= tokens
        seq = state.sequences[slot]
        offered = min(left, seq.prompt + seq.output - seq.cached)
        shape = with_prefill(shape, offered, seq.cached)
        left -= offered


@compiled
def _best(state: State, model: StepTime, shape: Sums, left: int, parked: int) -> int:
    """The waiting offline request with which the step is worth most per second; NONE: none fits.

    One candidate of each length: that with the most cached blocks, then the oldest.
    """
    free = state.engine.free - _kept_free(state, parked)
    chosen, best, seen, slot = NONE, -np.inf, 0, state.engine.head
    while slot != NONE:
        bucket = _bucket(state, slot)
        if not seen & (1 << bucket):
            seen |= 1 << bucket
            candidate = _candidate(state, slot, bucket)
            value = _worth(state, model, candidate, shape, left, free)
            if value > best:
                chosen, best = candidate, value
        slot = state.sequences[slot].next
    return chosen


@inlined
def _bucket(state: State, slot: int) -> int:
    """By the prompt alone: a preempted request may still be told of a token more."""
    tokens, bits = state.sequences[slot].prompt, 1
    while tokens > 1:
        tokens >>= 1
        bits += 1
    return bits


@compiled
def _candidate(state: State, slot: int, bucket: int) -> int:
    found = slot
    while slot != NONE:
        seq = state.sequences[slot]
        if seq.hits > state.sequences[found].hits and _bucket(state, slot) == bucket:
            found = slot
        slot = seq.next
    return found


@compiled
def _worth(state: State, model: StepTime, slot: int, shape: Sums, left: int, free: float) -> float:
    """Tokens per second of the step with it; minus infinity where it does not fit."""
    engine, seq = state.engine, state.sequences[slot]
    known, size = seq.prompt + seq.output, engine.block_size
    hits = min(seq.hits, (known - 1) // size)
    blocks = blocks_for(state, known)
    if seq.stale > 0:  # its output in flight decides where it must continue
        return -np.inf
    if blocks + seq.stop_after / size > free and engine.running > 0:
        return -np.inf
    cached = hits * size
    tokens = min(left, known - cached)
    lost = max(0, blocks - hits - engine.free) * size
    so_far = shape.prefill_tokens + shape.decode_seqs
    seconds = shape_s(model, with_prefill(shape, tokens, cached))
    return float(_echo_worth(so_far, cached, tokens, lost, seconds))


@compiled
def _kept_free(state: State, parked: int) -> float:
    """Blocks that admissions leave: for bursts, and for what runs to grow into."""
    engine, held = state.engine, 0
    if engine.running + parked == 0:
        return 0.0
    for i in range(engine.running):
        if not is_offline(state, state.running[i]):
            held += state.sequences[state.running[i]].blocks
    return float(max(0.0, engine.usual_online_blocks - held) + engine.running + parked)
