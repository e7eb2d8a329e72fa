// Which waiting offline requests are admitted: `foretell.cosched.selector`, over arrays.

#pragma once

#include "cosched_plan.h"
#include "scheduling.h"

namespace foretell::cosched_admission {

using namespace cosched_plan;
using namespace scheduling;

// The bucket by prompt length alone, since the output of a preempted request may still grow.
INLINED Int bucket_of(const State& state, Int slot) {
    Int tokens = state.sequences[slot].prompt, bits = 1;
    while (tokens > 1) {
        tokens >>= 1;
        bits += 1;
    }
    return bits;
}

COMPILED Int candidate_from(const State& state, Int slot, Int bucket) {
    Int found = slot;
    while (slot != NONE) {
        auto& seq = state.sequences[slot];
        if (seq.hits > state.sequences[found].hits && bucket_of(state, slot) == bucket) {
            found = slot;
        }
        slot = seq.next;
    }
    return found;
}

// Tokens per second of the step with this request; minus infinity if it does not fit.
COMPILED double worth_of(const State& state, const StepTime& model, Int slot, const Sums& shape,
                         Int left, double free) {
    auto& engine = state.engine;
    auto& seq = state.sequences[slot];
    const Int known = seq.prompt + seq.output, size = engine.block_size;
    const Int hits = min(seq.hits, floor_div(known - 1, size)), blocks = blocks_for(state, known);
    if (seq.stale > 0) return -INFINITY;  // it can only go on when its output in flight is known
    const double wanted = double(blocks) + double(seq.stop_after) / double(size);
    if (wanted > free && engine.running > 0) return -INFINITY;
    const Int cached = hits * size, tokens = min(left, known - cached);
    const Int lost = max(Int(0), blocks - hits - engine.free) * size;
    const Int so_far = shape.prefill_tokens + shape.decode_seqs;
    const double seconds = step_s(model, with_prefill(shape, tokens, cached));
    return worth(so_far, cached, tokens, lost, seconds);
}

// Blocks that admissions must leave free: for bursts, and for the growth of running requests.
COMPILED double kept_free(const State& state, Int parked) {
    auto& engine = state.engine;
    if (engine.running + parked == 0) return 0.0;
    Int held = 0;
    for (Int i = 0; i < engine.running; i++) {
        const Int slot = state.running[i];
        if (!is_offline(state, slot)) held += state.sequences[slot].blocks;
    }
    const double burst = max(0.0, engine.usual_online_blocks - double(held));
    return burst + double(engine.running) + double(parked);
}

// The waiting offline request with which the step is worth most per second; NONE if none fits.
//
// There is one candidate for each length bucket: the one with the most cached blocks, then the
// oldest.
COMPILED Int best(const State& state, const StepTime& model, const Sums& shape, Int left,
                  Int parked) {
    const double free = double(state.engine.free) - kept_free(state, parked);
    Int chosen = NONE, seen = 0, slot = state.engine.head;
    double most = -INFINITY;
    while (slot != NONE) {
        const Int bucket = bucket_of(state, slot);
        if (!(seen & (Int(1) << bucket))) {
            seen |= Int(1) << bucket;
            const Int candidate = candidate_from(state, slot, bucket);
            const double value = worth_of(state, model, candidate, shape, left, free);
            if (value > most) {
                chosen = candidate;
                most = value;
            }
        }
        slot = state.sequences[slot].next;
    }
    return chosen;
}

// Admit offline requests while there are tokens for their prompts, best first.
//
// Without them the step has `shape`; there are `left` tokens for them. `parked` running requests
// are not in the running list at the moment.
COMPILED void admit_offline(const State& state, const Batch& batch, const StepTime& model,
                            Sums shape, Int left, Int parked, Int token_budget, Int threshold) {
    auto& engine = state.engine;
    while (left > 0 && token_budget > 0 && engine.running < engine.max_num_seqs) {
        const Int slot = best(state, model, shape, left, parked);
        if (slot == NONE) return;
        const Int tokens = admit_one(state, batch, slot, token_budget, threshold, NO_PADDING, false);
        if (tokens == 0) return;
        token_budget -= tokens;
        auto& seq = state.sequences[slot];
        const Int offered = min(left, seq.prompt + seq.output - seq.cached);
        shape = with_prefill(shape, offered, seq.cached);
        left -= offered;
    }
}

}  // namespace foretell::cosched_admission
