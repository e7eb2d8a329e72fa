// The tokens that the next step computes: `Scheduler.schedule` of vllm/v1/core/sched/scheduler.py.
//
// It is that of vLLM 0.32 without connectors, with the rules of `AsyncScheduler`: a sampled token
// counts as a placeholder until its output is applied, and so does each draft token that the step
// verifies. The scheduler foresees the end by `max_tokens`, but not by EOS. With one step in flight
// these rules change nothing.

#pragma once

#include "blocks.h"
#include "drafts.h"
#include "encoder.h"
#include "queues.h"

namespace foretell::scheduling {

using namespace blocks;
using namespace drafts;
using namespace encoder;
using namespace queues;

// The most tokens that one request may compute in this step; 0: no limit.
INLINED Int long_prefill_threshold(const State& state) {
    auto& engine = state.engine;
    if (engine.long_prefill_token_threshold == 0) return 0;
    // It exists to share a step: a lone request may take the whole budget (since 0.31).
    const Int requests = engine.running + engine.waiting;
    if (requests <= 1 && !engine.long_prefill_threshold_when_alone) return 0;
    if (engine.long_prefill_token_threshold_adaptive) {
        return max(engine.long_prefill_token_threshold,
                   floor_div(engine.max_num_batched_tokens, max(Int(1), requests)));
    }
    return engine.long_prefill_token_threshold;
}

// Whether prefill is deferred to a later step, so that all data-parallel ranks prefill in the same
// step.
INLINED bool defers_prefills(const State& state) {
    auto& engine = state.engine;
    const Int interval = engine.prefill_schedule_interval;
    if (interval <= 1 || engine.prefill_capacity_bound || engine.step_counter % interval == 0) {
        return false;
    }
    for (Int i = 0; i < engine.running; i++) {
        if (!state.sequences[state.running[i]].is_prefill_chunk) return true;
    }
    return false;
}

// The tokens that a waiting sequence would compute if there are blocks for them.
INLINED Int tokens_to_admit(const State& state, Int slot, Int token_budget, Int threshold, Int hits,
                            Int pads) {
    auto& engine = state.engine;
    auto& seq = state.sequences[slot];
    const Int cached = hits * engine.block_size;
    Int tokens = seq.prompt + seq.output - cached;
    if (tokens == 1 && pads > NO_PADDING) {
        tokens = padded_tokens(engine, cached, pads);
        if (tokens > token_budget) return 0;
    }
    if (0 < threshold && threshold < tokens) tokens = threshold;
    if (!engine.enable_chunked_prefill && tokens > token_budget) return 0;
    return min(tokens, token_budget);
}

// Whether there are blocks for a waiting sequence to compute `tokens` tokens behind its hits.
INLINED bool finds_blocks(const State& state, Int slot, Int tokens, Int hits) {
    auto& engine = state.engine;
    auto& seq = state.sequences[slot];
    const Int known = seq.prompt + seq.output, cached = hits * engine.block_size;
    const Int reserve = engine.reserve_full_isl ? min(known, engine.max_model_len) : 0;
    const Int slots = min(cached + tokens + engine.lookahead, engine.max_model_len);
    Int blocks = blocks_to_admit(engine, slots, reserve, hits);
    if (engine.running > 0) blocks += engine.watermark_blocks;
    // The free blocks among its hits are no longer free once it runs.
    return blocks + evictable(state, slot, hits) <= engine.free;
}

// The tokens that a waiting sequence would compute if admitted now; 0 if it must wait.
//
// `pads` is the step's `padding`.
INLINED Int admissible_tokens(const State& state, Int slot, Int token_budget, Int threshold,
                              Int hits, Int pads) {
    const Int tokens = tokens_to_admit(state, slot, token_budget, threshold, hits, pads);
    return tokens > 0 && finds_blocks(state, slot, tokens, hits) ? tokens : 0;
}

// `admissible_tokens` of a sequence with multimodal inputs.
//
// If there is no room for its inputs, `encoded` of the sequence is NONE afterwards.
COMPILED Int admissible_with_inputs(const State& state, Int slot, Int token_budget, Int threshold,
                                    Int hits, Int pads) {
    Int tokens = tokens_to_admit(state, slot, token_budget, threshold, hits, pads);
    state.sequences[slot].encoded = 0;
    if (tokens > 0) {
        tokens = try_inputs(state, slot, hits * state.engine.block_size, tokens);
        if (tokens == 0) state.sequences[slot].encoded = NONE;
    }
    if (tokens > 0 && !finds_blocks(state, slot, tokens, hits)) {
        free_inputs(state, slot);
        return 0;
    }
    return tokens;
}

// The tokens that a running sequence computes next, if there are blocks for them.
INLINED Int wanted_tokens(const State& state, Int slot, Int threshold, Int token_budget) {
    auto& engine = state.engine;
    auto& seq = state.sequences[slot];
    if (seq.placeholders > 0 && 0 < seq.max_tokens &&
        seq.max_tokens <= seq.computed + 2 - seq.placeholders - seq.prompt) {
        return 0;  // the token in flight is the last that `max_tokens` allows
    }
    Int tokens = seq.prompt + seq.output + seq.drafts + seq.placeholders - seq.computed;
    if (0 < threshold && threshold < tokens) tokens = threshold;
    return min(min(tokens, token_budget), engine.max_model_len - seq.computed - 1);
}

// The position in the running list of the sequence to preempt; the first one of equals.
COMPILED Int victim_of(const State& state) {
    auto& engine = state.engine;
    Int worst = engine.running - 1;
    if (engine.by_priority) {
        worst = 0;
        for (Int i = 1; i < engine.running; i++) {
            auto& seq = state.sequences[state.running[i]];
            auto& other = state.sequences[state.running[worst]];
            if (seq.priority > other.priority ||
                (seq.priority == other.priority && seq.arrival_s > other.arrival_s)) {
                worst = i;
            }
        }
    }
    return worst;
}

// Move the sequence at `position` of the running list back to waiting.
COMPILED void preempt(const State& state, Int position) {
    const Int slot = state.running[position];
    auto& seq = state.sequences[slot];
    stop_running(state, position);
    release(state, slot);
    free_inputs(state, slot);
    // Steps in flight still deliver its tokens; until then the sequence cannot be admitted.
    seq.stale = seq.in_flight;
    seq.placeholders = seq.computed = seq.drafts = 0;
    seq.preemptions += 1;
    enqueue_preempted(state, slot);
}

// `preempt` during scheduling; returns the token budget that this frees in the step.
COMPILED Int preempt_for(const State& state, const Batch& batch, Int position) {
    auto& counts = batch.counts;
    const Int slot = state.running[position];
    Int refund = 0, kept = 0;
    for (Int i = 0; i < counts.scheduled; i++) {
        auto& entry = batch.entries[i];
        if (entry.slot == slot) {
            refund = entry.tokens;
        } else {
            batch.entries[kept].slot = entry.slot;
            batch.entries[kept].tokens = entry.tokens;
            kept += 1;
        }
    }
    counts.scheduled = kept;
    if (refund > 0) state.engine.encoder_budget += state.sequences[slot].encoded;
    preempt(state, position);
    batch.entries[counts.preempted].preempted = slot;
    counts.preempted += 1;
    return refund;
}

// Schedule running sequences in order; returns the token budget left.
COMPILED Int schedule_running(const State& state, const Batch& batch, Int threshold, bool defers) {
    auto& engine = state.engine;
    auto& counts = batch.counts;
    Int token_budget = engine.max_num_scheduled_tokens, index = 0;
    while (index < engine.running && token_budget > 0) {
        const Int slot = state.running[index];
        auto& seq = state.sequences[slot];
        if (defers && seq.is_prefill_chunk) {
            index += 1;
            continue;
        }
        Int tokens = wanted_tokens(state, slot, threshold, token_budget);
        const bool encodes = seq.encoding > 0;
        const Int encoder_budget = engine.encoder_budget;
        if (encodes && tokens > 0) tokens = try_inputs(state, slot, seq.computed, tokens);
        if (tokens <= 0) {
            index += 1;
            continue;
        }
        bool goes_on = true;
        while (goes_on && !grow(state, slot, seq.computed + tokens)) {
            const Int position = victim_of(state);
            goes_on = state.running[position] != slot;
            token_budget += preempt_for(state, batch, position);
            if (position < index) index -= 1;
        }
        if (!goes_on) {
            // Sequences behind it have a higher priority, and may still fit.
            if (engine.by_priority && follows(engine, OWN_PREEMPTION_GOES_ON)) continue;
            return token_budget;
        }
        batch.entries[counts.scheduled].slot = slot;
        batch.entries[counts.scheduled].tokens = tokens;
        counts.scheduled += 1;
        token_budget -= tokens;
        index += 1;
        if (encodes) encode_inputs(state, slot, encoder_budget);
    }
    require(state.broken, token_budget >= 0, "token budget exceeded");
    return token_budget;
}

// Admit a waiting sequence; returns the tokens that it computes, 0 if it must wait.
INLINED Int admit_one(const State& state, const Batch& batch, Int slot, Int token_budget,
                      Int threshold, Int pads, bool defers) {
    auto& engine = state.engine;
    auto& counts = batch.counts;
    auto& seq = state.sequences[slot];
    const Int hits = find_hits(state, slot);
    if (defers && hits * engine.block_size < seq.prompt + seq.output - 1) {
        seq.encoded = 0;
        return 0;
    }
    const Int tokens = seq.inputs > 0
        ? admissible_with_inputs(state, slot, token_budget, threshold, hits, pads)
        : admissible_tokens(state, slot, token_budget, threshold, hits, pads);
    if (tokens == 0) return 0;
    unlink(state, slot);
    admit(state, slot, hits);
    seq.cached = seq.computed = hits * engine.block_size;
    const bool grown = grow(state, slot, seq.computed + tokens);
    require(state.broken, grown, "admission was checked");
    run(state, slot);
    note_adapter(state, batch, slot);
    if (seq.inputs > 0) {
        begin_inputs(state, slot);
        encode_inputs(state, slot, engine.encoder_budget);
    }
    batch.entries[counts.scheduled].slot = slot;
    batch.entries[counts.scheduled].tokens = tokens;
    batch.entries[counts.admitted].admitted = slot;
    counts.scheduled += 1;
    counts.admitted += 1;
    return tokens;
}

// Whether the sequence, which was not admitted, is passed over, as its inputs have no room.
INLINED bool is_unencodable(const State& state, Int slot) {
    auto& seq = state.sequences[slot];
    return seq.inputs > 0 && seq.encoded == NONE &&
           follows(state.engine, UNENCODABLE_IS_PASSED_OVER);
}

// Bits of `Sequence.blocked`: the second one is vLLM's `deferred_waiting`.
constexpr Int IS_BLOCKED = 1, WAS_PASSED_OVER = 2;

// Admit from the head of the queue until a sequence does not fit; returns the token budget left.
//
// If the engine co-schedules, it stops at offline requests. Sequences that wait for a grammar, or
// for an adapter for which this step has no room, are passed over.
INLINED Int schedule_waiting(const State& state, const Batch& batch, Int token_budget,
                             Int threshold, bool defers) {
    auto& engine = state.engine;
    Int slot = engine.head;
    const Int pads = padding(state, batch);
    count_adapters(state, batch);
    while (slot != NONE && token_budget > 0 && engine.running < engine.max_num_seqs) {
        auto& seq = state.sequences[slot];
        if (is_offline(state, slot)) break;
        const Int behind = seq.next;
        // Stale output in flight decides where the sequence continues, so it must wait for that.
        Int tokens = 0;
        if (seq.stale == 0 && (seq.blocked & IS_BLOCKED) == 0 && !is_left_out(state, batch, slot)) {
            tokens = admit_one(state, batch, slot, token_budget, threshold, pads, defers);
            if (tokens == 0 && !is_unencodable(state, slot)) break;
            token_budget -= tokens;
        }
        seq.blocked = tokens > 0 ? Int(0) : seq.blocked | WAS_PASSED_OVER;
        slot = behind;
    }
    if (engine.prefill_schedule_interval > 1 && !defers) {
        engine.prefill_capacity_bound = 0;
        for (slot = engine.head; slot != NONE; slot = state.sequences[slot].next) {
            if (!state.sequences[slot].blocked) engine.prefill_capacity_bound = 1;
        }
    }
    return token_budget;
}

// Count scheduled tokens as computed (`_update_after_schedule`) and sum up the step.
INLINED void advance(const State& state, const Batch& batch) {
    auto& counts = batch.counts;
    Int prefill_seqs = 0, prefill_tokens = 0, prefill_pairs = 0;
    Int decode_seqs = 0, decode_pairs = 0, drafted = 0;
    for (Int i = 0; i < counts.scheduled; i++) {
        auto& entry = batch.entries[i];
        auto& seq = state.sequences[entry.slot];
        Int tokens = entry.tokens;
        const Int computed = seq.computed, known = seq.prompt + seq.output + seq.placeholders;
        seq.computed = computed + tokens;
        seq.in_flight += tokens;
        const Int drafts = max(Int(0), seq.computed - known);
        const bool samples = seq.computed >= known;
        tokens -= drafts;
        if (tokens == 1 && computed >= seq.prompt) {
            decode_seqs += 1;
            decode_pairs += computed + 1;
        } else {
            prefill_seqs += 1;
            prefill_tokens += tokens;
            prefill_pairs += tokens * computed + floor_half(tokens * (tokens + 1));
        }
        drafted += drafts;
        entry.samples = samples;
        entry.drafts = drafts;
        seq.is_prefill_chunk = !samples;
        seq.drafts = 0;
        if (samples) {
            seq.placeholders += 1 + drafts;
            // The actual number of drafts is not known yet.
            if (state.engine.depth > 1) seq.drafts = state.engine.drafts;
        }
    }
    counts.draft_tokens = drafted;
    counts.prefill_seqs = prefill_seqs;
    counts.prefill_tokens = prefill_tokens;
    counts.prefill_pairs = prefill_pairs;
    counts.decode_seqs = decode_seqs;
    counts.decode_pairs = decode_pairs;
}

// Fill `batch` with the next step; false if nothing can change.
//
// The batch is empty if the step only preempted.
COMPILED bool schedule(const State& state, const Batch& batch) {
    auto& counts = batch.counts;
    counts.scheduled = counts.admitted = counts.preempted = 0;
    state.engine.encoder_budget = state.engine.max_num_encoder_input_tokens;
    const Int threshold = long_prefill_threshold(state);
    const bool defers = defers_prefills(state);
    const Int token_budget = schedule_running(state, batch, threshold, defers);
    if (counts.preempted == 0) schedule_waiting(state, batch, token_budget, threshold, defers);
    if (counts.scheduled == 0 && counts.preempted == 0) return false;
    advance(state, batch);
    return true;
}

}  // namespace foretell::scheduling
