"""The output of a step: `Scheduler.update_from_output` (vllm/v1/core/sched/scheduler.py, 0.32)."""

from foretell.kernel.blocks import commit, held_by, release
from foretell.kernel.drafts import accepted_tokens, drafted_tokens
from foretell.kernel.encoder import check_inputs, free_inputs, free_processed
from foretell.kernel.jit import compiled
from foretell.kernel.layout import ENDED, NONE, RUNNING, WAITING, Batch, State
from foretell.kernel.queues import drop_ended, stop_running, unlink


@compiled
def complete(state: State, batch: Batch, now_s: float) -> None:
    """Apply a step's outputs at `now_s`; fills the batch's `sampled` and `finished`.

    One token for every sequence whose KV has caught up, those preempted since included, and those
    of its draft tokens that are accepted. Batches are completed in the order in which they were
    scheduled.
    """
    engine, counts = state.engine, batch.counts
    longest = engine.max_model_len
    counts.sampled = counts.finished = 0
    for i in range(counts.scheduled):
        slot, tokens = batch.entries[i].slot, batch.entries[i].tokens
        seq = state.sequences[slot]
        if seq.status == ENDED:
            continue
        stale = seq.stale > 0
        seq.in_flight -= tokens
        if stale:
            seq.stale -= tokens
        if seq.encoding > 0:
            free_processed(state, slot, batch.entries[i].drafts)
        if not batch.entries[i].samples:
            continue
        if seq.output == 0:
            seq.first_token_s = now_s
        drafts = batch.entries[i].drafts
        tokens, rejected = 1, 0
        if drafts > 0:
            accepted = accepted_tokens(engine, seq, drafts)
            rejected = drafts - accepted
            left = min(seq.stop_after - seq.output, longest - seq.prompt - seq.output)
            tokens = max(1, min(1 + accepted, left))
        seq.output += tokens
        batch.entries[counts.sampled].sampled = slot
        counts.sampled += 1
        if not stale:
            seq.computed -= rejected
            seq.placeholders -= tokens + rejected
            if engine.knows_content and engine.depth > 1:  # otherwise the next step commits them
                commit(state, slot, seq.computed - seq.placeholders)
        if seq.output >= seq.stop_after or seq.prompt + seq.output >= longest:
            batch.entries[counts.finished].finished = slot
            counts.finished += 1
            free_inputs(state, slot)
        elif engine.drafts > 0 and engine.depth == 1:
            seq.drafts = drafted_tokens(engine, seq)
    if counts.finished > 0:
        retire(state, batch, now_s)


@compiled
def retire(state: State, batch: Batch, now_s: float) -> None:
    """End the sequences in `finished` and free their blocks."""
    for i in range(batch.counts.finished):
        slot = batch.entries[i].finished
        seq = state.sequences[slot]
        if seq.status == WAITING:  # its last token was of a step before its preemption
            unlink(state, slot)
        release(state, slot)
        seq.status, seq.finished_s = ENDED, now_s
    drop_ended(state)


@compiled
def abort(state: State, slot: int) -> None:
    """End a sequence that its client has aborted, whether it runs or waits."""
    seq = state.sequences[slot]
    if seq.status == WAITING:
        unlink(state, slot)
    elif seq.status == RUNNING:
        position = 0
        while state.running[position] != slot:
            position += 1
        stop_running(state, position)
        release(state, slot)
    free_inputs(state, slot)
    seq.status = ENDED


@compiled
def check(state: State) -> None:
    """Blocks are conserved and limits kept, counted anew; a violation is a bug in the twin."""
    engine, held, waiting = state.engine, 0, 0
    assert 0 <= engine.running <= engine.max_num_seqs, "too many requests run"
    for i in range(engine.running):
        seq = state.sequences[state.running[i]]
        assert seq.status == RUNNING, "who runs is not known to run"
        assert seq.blocks * engine.block_size >= seq.computed, "computed beyond its blocks"
        held += held_by(state, seq.blocks, seq.left)
    slot = engine.head
    while slot != NONE:
        seq = state.sequences[slot]
        assert seq.status == WAITING, "who waits is not known to wait"
        assert seq.blocks == 0, "a waiting request holds blocks"
        waiting += 1
        slot = seq.next
    assert waiting == engine.waiting, "the waiting queue is miscounted"
    assert engine.free >= 0, "more KV blocks taken than exist"
    assert engine.free + engine.held == engine.owned, "KV blocks are not conserved"
    check_inputs(state)
    if engine.knows_content:
        _check_pool(state, held)
    else:
        assert held == engine.held, "blocks held are miscounted"


@compiled
def _check_pool(state: State, references: int) -> None:
    engine, held, counted = state.engine, 0, 0
    for i in range(len(state.blocks)):
        held += state.blocks[i].refs > 0
        counted += state.blocks[i].refs
    assert counted == references, "a block is not held as often as it is referred to"
    assert held == engine.held, "blocks held are miscounted"
    free, index = engine.unhashed, engine.lru_head
    while index != NONE:
        assert state.blocks[index].content != NONE, "a block in the free queue lost its content"
        free += 1
        index = state.blocks[index].next
    assert free == engine.free, "free blocks are miscounted"
