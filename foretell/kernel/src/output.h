// The output of a step: `Scheduler.update_from_output` (vllm/v1/core/sched/scheduler.py, 0.32).

#pragma once

#include "scheduling.h"

namespace foretell::output {

using namespace scheduling;

// End the sequences in `finished` and free their blocks.
COMPILED void retire(const State& state, const Batch& batch, double now_s) {
    for (Int i = 0; i < batch.counts.finished; i++) {
        const Int slot = batch.entries[i].finished;
        auto& seq = state.sequences[slot];
        // It waits if its last token was of a step before its preemption.
        if (seq.status == WAITING) unlink(state, slot);
        release(state, slot);
        seq.status = ENDED;
        seq.finished_s = now_s;
    }
    drop_ended(state);
}

// Commit the blocks that the output of a step has confirmed; `trimmed` tokens are behind the end.
//
// If this does not commit them, the next step does.
INLINED void commit_output(const State& state, Int slot, Int trimmed) {
    auto& engine = state.engine;
    auto& seq = state.sequences[slot];
    if (follows(engine, COMMITS_CONFIRMED)) {
        if (engine.depth == 1 && engine.drafts == 0) return;
        seq.computed -= trimmed;
        commit(state, slot, seq.computed - seq.in_flight);
    } else if (engine.depth > 1) {
        commit(state, slot, seq.computed - seq.placeholders);
    }
}

// Apply a step's outputs at `now_s`; fills the batch's `sampled` and `finished`.
//
// Every sequence whose KV has caught up gets one token and its accepted draft tokens, even if it
// was preempted since. Batches must be completed in the order of scheduling.
COMPILED void complete(const State& state, const Batch& batch, double now_s) {
    auto& engine = state.engine;
    auto& counts = batch.counts;
    const Int longest = engine.max_model_len;
    counts.sampled = counts.finished = 0;
    for (Int i = 0; i < counts.scheduled; i++) {
        auto& entry = batch.entries[i];
        const Int slot = entry.slot;
        auto& seq = state.sequences[slot];
        if (seq.status == ENDED) continue;
        const bool stale = seq.stale > 0;
        seq.in_flight -= entry.tokens;
        if (stale) seq.stale -= entry.tokens;
        if (seq.encoding > 0) free_processed(state, slot, entry.drafts);
        if (!entry.samples) continue;
        if (seq.output == 0) seq.first_token_s = now_s;
        const Int drafts = entry.drafts;
        Int tokens = 1, rejected = 0;
        if (drafts > 0) {
            const Int accepted = accepted_tokens(engine, seq, drafts);
            rejected = drafts - accepted;
            const Int left = min(seq.stop_after - seq.output, longest - seq.prompt - seq.output);
            tokens = max(Int(1), min(1 + accepted, left));
        }
        seq.output += tokens;
        batch.entries[counts.sampled].sampled = slot;
        counts.sampled += 1;
        if (!stale) {
            seq.computed -= rejected;
            seq.placeholders -= tokens + rejected;
            if (engine.knows_content) commit_output(state, slot, drafts - rejected + 1 - tokens);
        }
        if (seq.output >= seq.stop_after || seq.prompt + seq.output >= longest) {
            batch.entries[counts.finished].finished = slot;
            counts.finished += 1;
            free_inputs(state, slot);
        } else if (engine.drafts > 0 && engine.depth == 1) {
            seq.drafts = drafted_tokens(engine, seq);
        }
    }
    if (counts.finished > 0) retire(state, batch, now_s);
}

// End an aborted sequence, running or waiting.
COMPILED void drop(const State& state, Int slot) {
    auto& seq = state.sequences[slot];
    if (seq.status == WAITING) {
        unlink(state, slot);
    } else if (seq.status == RUNNING) {
        Int position = 0;
        while (state.running[position] != slot) position += 1;
        stop_running(state, position);
        release(state, slot);
    }
    free_inputs(state, slot);
    seq.status = ENDED;
}

COMPILED void check_pool(const State& state, Int references) {
    auto& engine = state.engine;
    auto& broken = state.broken;
    Int held = 0, counted = 0;
    for (auto& block : state.blocks) {
        held += block.refs > 0;
        counted += block.refs;
    }
    require(broken, counted == references, "a block is not held as often as it is referred to");
    require(broken, held == engine.held, "blocks held are miscounted");
    Int free = engine.unhashed, index = engine.lru_head;
    while (index != NONE) {
        const bool has_content = state.blocks[index].content != NONE;
        require(broken, has_content, "a block in the free queue lost its content");
        free += 1;
        index = state.blocks[index].next;
    }
    require(broken, free == engine.free, "free blocks are miscounted");
}

// Recount blocks and check limits; a violation is a bug in the twin.
COMPILED void check(const State& state) {
    auto& engine = state.engine;
    auto& broken = state.broken;
    Int held = 0, waiting = 0;
    const bool few_run = 0 <= engine.running && engine.running <= engine.max_num_seqs;
    require(broken, few_run, "too many requests run");
    for (Int i = 0; i < engine.running; i++) {
        auto& seq = state.sequences[state.running[i]];
        require(broken, seq.status == RUNNING, "a running request has another status");
        const bool has_blocks = seq.blocks * engine.block_size >= seq.computed;
        require(broken, has_blocks, "computed beyond its blocks");
        held += held_by(state, seq.blocks, seq.left);
    }
    Int slot = engine.head;
    while (slot != NONE) {
        auto& seq = state.sequences[slot];
        require(broken, seq.status == WAITING, "a waiting request has another status");
        require(broken, seq.blocks == 0, "a waiting request holds blocks");
        waiting += 1;
        slot = seq.next;
    }
    require(broken, waiting == engine.waiting, "the waiting queue is miscounted");
    require(broken, engine.free >= 0, "more KV blocks taken than exist");
    require(broken, engine.free + engine.held == engine.owned, "KV blocks are not conserved");
    check_inputs(state);
    if (engine.knows_content) {
        check_pool(state, held);
    } else {
        require(broken, held == engine.held, "blocks held are miscounted");
    }
}

}  // namespace foretell::output
