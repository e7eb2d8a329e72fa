"""The tokens that the next step computes: `Scheduler.schedule` of vllm/v1/core/sched/scheduler.py.

It is that of vLLM 0.32 without connectors, with the rules of `AsyncScheduler`: a sampled token
counts as a placeholder until its output is applied, and so does each draft token that the step
verifies; `max_tokens` is foreseen, the end of a text is not. With one step in flight these rules
change nothing.
"""

from foretell.kernel.blocks import admit, blocks_to_admit, evictable, find_hits, grow, release
from foretell.kernel.drafts import (
    NO_PADDING,
    count_adapters,
    is_left_out,
    note_adapter,
    padded_tokens,
    padding,
)
from foretell.kernel.encoder import begin_inputs, encode_inputs, free_inputs, try_inputs
from foretell.kernel.jit import compiled, inlined
from foretell.kernel.layout import NONE, Batch, State
from foretell.kernel.queues import enqueue_preempted, is_offline, run, stop_running, unlink


@compiled
def schedule(state: State, batch: Batch) -> bool:
    """Fill `batch` with the next step; False when nothing can change.

    A batch may be empty when all it did was preempt.
    """
    counts = batch.counts
    counts.scheduled = counts.admitted = counts.preempted = 0
    state.engine.encoder_budget = state.engine.max_num_encoder_input_tokens
    threshold = long_prefill_threshold(state)
    token_budget = schedule_running(state, batch, threshold)
    if counts.preempted == 0:
        schedule_waiting(state, batch, token_budget, threshold)
    if counts.scheduled == 0 and counts.preempted == 0:
        return False
    advance(state, batch)
    return True


@inlined
def long_prefill_threshold(state: State) -> int:
    """The most tokens that one request may compute in this step; 0 where there is no such limit."""
    engine = state.engine
    if engine.long_prefill_token_threshold == 0:
        return 0
    # It exists to share a step: alone, a request may take the whole budget (since 0.31).
    requests = engine.running + engine.waiting
    if requests <= 1 and not engine.long_prefill_threshold_when_alone:
        return 0
    if engine.long_prefill_token_threshold_adaptive:
        return max(
            engine.long_prefill_token_threshold, engine.max_num_batched_tokens // max(1, requests)
        )
    return engine.long_prefill_token_threshold


@inlined
def admissible_tokens(
    state: State, slot: int, token_budget: int, threshold: int, hits: int, pads: int
) -> int:
    """The tokens that a waiting sequence would compute if admitted now; 0 when it must wait.

    `pads` is what `padding` says of the step.
    """
    tokens = _tokens_to_admit(state, slot, token_budget, threshold, hits, pads)
    return tokens if tokens > 0 and _finds_blocks(state, slot, tokens, hits) else 0


@inlined
def _tokens_to_admit(
    state: State, slot: int, token_budget: int, threshold: int, hits: int, pads: int
) -> int:
    """The tokens that a waiting sequence would compute if there were blocks for them."""
    engine, seq = state.engine, state.sequences[slot]
    cached = hits * engine.block_size
    tokens = seq.prompt + seq.output - cached
    if tokens == 1 and pads > NO_PADDING:
        tokens = padded_tokens(engine, cached, pads)
        if tokens > token_budget:
            return 0
    if 0 < threshold < tokens:
        tokens = threshold
    if not engine.enable_chunked_prefill and tokens > token_budget:
        return 0
    return min(tokens, token_budget)


@inlined
def _finds_blocks(state: State, slot: int, tokens: int, hits: int) -> bool:
    """Whether a waiting sequence has the blocks to compute so many tokens behind its hits."""
    engine, seq = state.engine, state.sequences[slot]
    known, cached = seq.prompt + seq.output, hits * engine.block_size
    reserve = min(known, engine.max_model_len) if engine.reserve_full_isl else 0
    slots = min(cached + tokens + engine.lookahead, engine.max_model_len)
    blocks = blocks_to_admit(engine, slots, reserve, hits)
    if engine.running > 0:
        blocks += engine.watermark_blocks
    # Free blocks that it hits are no longer free once it runs.
    return bool(blocks + evictable(state, slot, hits) <= engine.free)


@compiled
def _admissible_with_inputs(
    state: State, slot: int, token_budget: int, threshold: int, hits: int, pads: int
) -> int:
    """`admissible_tokens` of a sequence with multimodal inputs, which may find no room."""
    tokens = _tokens_to_admit(state, slot, token_budget, threshold, hits, pads)
    if tokens > 0:
        tokens = try_inputs(state, slot, hits * state.engine.block_size, tokens)
    if tokens > 0 and not _finds_blocks(state, slot, tokens, hits):
        free_inputs(state, slot)
        return 0
    return tokens


@compiled
def schedule_running(state: State, batch: Batch, threshold: int) -> int:
    """Schedule running sequences in their order; returns the token budget left."""
    engine, counts = state.engine, batch.counts
    token_budget, index = engine.max_num_scheduled_tokens, 0
    while index < engine.running and token_budget > 0:
        slot = state.running[index]
        seq = state.sequences[slot]
        tokens = wanted_tokens(state, slot, threshold, token_budget)
        encodes, encoder_budget = seq.encoding > 0, engine.encoder_budget
        if encodes and tokens > 0:
            tokens = try_inputs(state, slot, seq.computed, tokens)
        if tokens <= 0:
            index += 1
            continue
        while not grow(state, slot, seq.computed + tokens):
            position = _victim(state)
            victim = state.running[position]
            token_budget += _preempt(state, batch, position)
            if position < index:
                index -= 1
            if victim == slot:
                return token_budget
        batch.entries[counts.scheduled].slot = slot
        batch.entries[counts.scheduled].tokens = tokens
        counts.scheduled += 1
        token_budget -= tokens
        index += 1
        if encodes:
            encode_inputs(state, slot, encoder_budget)
    assert token_budget >= 0, "token budget exceeded"
    return token_budget


@inlined
def wanted_tokens(state: State, slot: int, threshold: int, token_budget: int) -> int:
    """The tokens that a running sequence computes next, if there are blocks for them."""
    engine, seq = state.engine, state.sequences[slot]
    if seq.placeholders > 0 and 0 < seq.max_tokens <= (
        seq.computed + 2 - seq.placeholders - seq.prompt
    ):
        return 0  # the token in flight is the last that `max_tokens` allows
    tokens = seq.prompt + seq.output + seq.drafts + seq.placeholders - seq.computed
    if 0 < threshold < tokens:
        tokens = threshold
    return min(tokens, token_budget, engine.max_model_len - seq.computed - 1)


@compiled
def _victim(state: State) -> int:
    """The position in the running list of the sequence to preempt; the first of equals."""
    engine = state.engine
    worst = engine.running - 1
    if engine.by_priority:
        worst = 0
        for i in range(1, engine.running):
            seq, other = state.sequences[state.running[i]], state.sequences[state.running[worst]]
            if seq.priority > other.priority or (
                seq.priority == other.priority and seq.arrival_s > other.arrival_s
            ):
                worst = i
    return worst


@compiled
def _preempt(state: State, batch: Batch, position: int) -> int:
    """Move the sequence at `position` back to waiting; returns the token budget that this frees."""
    counts, slot = batch.counts, state.running[position]
    refund, kept = 0, 0
    for i in range(counts.scheduled):
        if batch.entries[i].slot == slot:
            refund = batch.entries[i].tokens
        else:
            batch.entries[kept].slot, batch.entries[kept].tokens = (
                batch.entries[i].slot,
                batch.entries[i].tokens,
            )
            kept += 1
    counts.scheduled = kept
    if refund > 0:
        state.engine.encoder_budget += state.sequences[slot].encoded
    preempt(state, position)
    batch.entries[counts.preempted].preempted = slot
    counts.preempted += 1
    return refund


@compiled
def preempt(state: State, position: int) -> None:
    """Move the sequence at `position` of the running list back to waiting."""
    slot = state.running[position]
    seq = state.sequences[slot]
    stop_running(state, position)
    release(state, slot)
    free_inputs(state, slot)
    # Output in flight still delivers its tokens; until it has, the sequence cannot go on.
    seq.stale, seq.placeholders = seq.in_flight, 0
    seq.computed = seq.drafts = 0
    seq.preemptions += 1
    enqueue_preempted(state, slot)


@inlined
def schedule_waiting(state: State, batch: Batch, token_budget: int, threshold: int) -> int:
    """Admit from the head of the queue until something does not fit; returns the tokens left.

    Offline requests are left where they are told apart. Who waits for a grammar, or for an adapter
    for which this step has no room, is passed over.
    """
    engine = state.engine
    slot, pads = engine.head, padding(state, batch)
    count_adapters(state, batch)
    while slot != NONE and token_budget > 0 and engine.running < engine.max_num_seqs:
        seq = state.sequences[slot]
        if is_offline(state, slot):
            break
        behind = seq.next
        # With stale output in flight, that decides where it must continue.
        if seq.stale == 0 and not seq.blocked and not is_left_out(state, batch, slot):
            tokens = admit_one(state, batch, slot, token_budget, threshold, pads)
            if tokens == 0:
                break
            token_budget -= tokens
        slot = behind
    return token_budget


@inlined
def admit_one(
    state: State, batch: Batch, slot: int, token_budget: int, threshold: int, pads: int
) -> int:
    """Admit a waiting sequence; returns the tokens that it computes, 0 where it must wait."""
    engine, counts, seq = state.engine, batch.counts, state.sequences[slot]
    hits = find_hits(state, slot)
    if seq.inputs > 0:
        tokens = _admissible_with_inputs(state, slot, token_budget, threshold, hits, pads)
    else:
        tokens = admissible_tokens(state, slot, token_budget, threshold, hits, pads)
    if tokens == 0:
        return 0
    unlink(state, slot)
    admit(state, slot, hits)
    seq.cached = seq.computed = hits * engine.block_size
    grown = grow(state, slot, seq.computed + tokens)
    assert grown, "admission was checked"
    run(state, slot)
    note_adapter(state, batch, slot)
    if seq.inputs > 0:
        begin_inputs(state, slot)
        encode_inputs(state, slot, engine.encoder_budget)
    batch.entries[counts.scheduled].slot = slot
    batch.entries[counts.scheduled].tokens = tokens
    batch.entries[counts.admitted].admitted = slot
    counts.scheduled += 1
    counts.admitted += 1
    return tokens


@inlined
def advance(state: State, batch: Batch) -> None:
    """Count scheduled tokens as computed (`_update_after_schedule`) and sum up the step."""
    counts = batch.counts
    prefill_seqs = prefill_tokens = prefill_pairs = decode_seqs = decode_pairs = drafted = 0
    for i in range(counts.scheduled):
        seq, tokens = state.sequences[batch.entries[i].slot], batch.entries[i].tokens
        computed, known = seq.computed, seq.prompt + seq.output + seq.placeholders
        seq.computed = computed + tokens
        seq.in_flight += tokens
        drafts = max(0, seq.computed - known)
        samples = seq.computed >= known
        tokens -= drafts
        if tokens == 1 and computed >= seq.prompt:
            decode_seqs += 1
            decode_pairs += computed + 1
        else:
            prefill_seqs += 1
            prefill_tokens += tokens
            prefill_pairs += tokens * computed + tokens * (tokens + 1) // 2
        drafted += drafts
        batch.entries[i].samples, batch.entries[i].drafts = samples, drafts
        seq.is_prefill_chunk, seq.drafts = not samples, 0
        if samples:
            seq.placeholders += 1 + drafts
            if state.engine.depth > 1:  # what will be drafted is not known yet
                seq.drafts = state.engine.drafts
    counts.draft_tokens = drafted
    counts.prefill_seqs, counts.prefill_tokens = prefill_seqs, prefill_tokens
    counts.prefill_pairs = prefill_pairs
    counts.decode_seqs, counts.decode_pairs = decode_seqs, decode_pairs
