// What speculative decoding and LoRA add to scheduling: draft tokens, and adapters in a step.
//
// A step verifies the draft tokens of each sequence that decodes, and samples one more token. The
// first few drafts are accepted, the others rolled back. How many are drafted and accepted depends
// on the model and not on the scheduler: both are drawn by the ratios of `Engine`.

#pragma once

#include "state.h"

namespace foretell::drafts {

// Whether a step pads an admitted sequence that has one token to compute: never, only behind cached
// blocks, or always.
constexpr Int NO_PADDING = 0, PADDED_BEHIND_HITS = 1, PADDED = 2;

// How the step, which so far has only running sequences, pads those that it admits.
//
// If all others decode, vLLM keeps the step uniform: a sequence that is admitted to decode gets
// placeholders for drafts.
INLINED Int padding(const State& state, const Batch& batch) {
    if (state.engine.drafts == 0) return NO_PADDING;
    for (Int i = 0; i < batch.counts.scheduled; i++) {
        if (state.sequences[batch.entries[i].slot].is_prefill_chunk) return NO_PADDING;
    }
    return batch.counts.scheduled > 0 ? PADDED : PADDED_BEHIND_HITS;
}

// The padded tokens of an admitted sequence that has one token to compute behind `cached` ones.
INLINED Int padded_tokens(const Engine& engine, Int cached, Int pads) {
    if (pads == PADDED_BEHIND_HITS && cached == 0) return 1;
    const Int tokens = 1 + engine.drafts;
    return cached + tokens + 1 <= engine.max_model_len ? tokens : 1;
}

// A pseudo-random number in [0, 1) (splitmix64's finalizer).
//
// It depends only on the arrival time and on the prompt and output tokens of the sequence.
COMPILED double uniform(const Sequence& seq) {
    uint64_t z = uint64_t(Int(seq.output)) * 0x9E3779B97F4A7C15u + uint64_t(Int(seq.prompt));
    z += uint64_t(Int(seq.arrival_s * 1e3)) * 0xD1B54A32D192ED03u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return double(z >> 11) / 9007199254740992.0;
}

// The number of tokens that are drafted for `seq`, if that is known before the step.
COMPILED Int drafted_tokens(const Engine& engine, const Sequence& seq) {
    Int count = 0;
    const double level = uniform(seq);
    while (count < engine.drafts && level < engine.drafted_ratio[count]) count += 1;
    return count;
}

// The number of the next `drafts` draft tokens of `seq` that are accepted.
COMPILED Int accepted_tokens(const Engine& engine, const Sequence& seq, Int drafts) {
    Int count = 0;
    const double level = uniform(seq);
    while (count < min(drafts, MOST_DRAFTS) && level < engine.accepted_ratio[count]) count += 1;
    return count;
}

// Note the adapter of `slot`, which is in the step.
INLINED void note_adapter(const State& state, const Batch& batch, Int slot) {
    const Int adapter = state.sequences[slot].adapter, count = batch.counts.adapters;
    if (adapter == 0 || state.engine.max_loras == 0) return;
    for (Int i = 0; i < count; i++) {
        if (batch.entries[i].adapter == adapter) return;
    }
    batch.entries[count].adapter = adapter;
    batch.counts.adapters = count + 1;
}

// List the adapters of the sequences in the step so far, or of all running ones.
COMPILED void count_adapters(const State& state, const Batch& batch) {
    auto& engine = state.engine;
    batch.counts.adapters = 0;
    if (engine.max_loras == 0) return;
    if (follows(engine, ADAPTERS_OF_ALL_RUNNING)) {
        for (Int i = 0; i < engine.running; i++) note_adapter(state, batch, state.running[i]);
    } else {
        for (Int i = 0; i < batch.counts.scheduled; i++) {
            note_adapter(state, batch, batch.entries[i].slot);
        }
    }
}

// Whether the step has no room for the adapter of `slot`, which it does not have yet.
INLINED bool is_left_out(const State& state, const Batch& batch, Int slot) {
    const Int adapter = state.sequences[slot].adapter, most = state.engine.max_loras;
    bool left_out = adapter != 0 && 0 < most && most == batch.counts.adapters;
    if (left_out) {
        for (Int i = 0; i < batch.counts.adapters; i++) {
            left_out = left_out && batch.entries[i].adapter != adapter;
        }
    }
    return left_out;
}

}  // namespace foretell::drafts
