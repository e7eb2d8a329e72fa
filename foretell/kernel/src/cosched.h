// A step of an engine that co-schedules offline requests beside online ones (ADR 10).
//
// Mirrors `foretell.services.backend.vllm.cosched`, for blocks without identity. Which requests
// share blocks is not known, nor how often a waiting request was passed over. These decide only
// which offline request is next; online requests do not depend on them.

#pragma once

#include "cosched_admission.h"

namespace foretell::cosched {

using namespace cosched_admission;

struct Plan {
    Sums shape;        // the step with the online requests and the offline ones that decode
    Int parked;        // running offline requests without a token in this step
    Int prefill_left;  // tokens for admitted offline requests; 0 if none may be admitted
    Int tokens;
};

// Whether offline requests run or wait. Waiting ones are behind all others.
INLINED bool has_offline(const State& state) {
    auto& engine = state.engine;
    if (!engine.co_schedules) return false;
    bool found = engine.tail != NONE && is_offline(state, engine.tail);
    for (Int i = 0; i < engine.running; i++) {
        found = found || is_offline(state, state.running[i]);
    }
    return found;
}

INLINED bool stands_before(const State& state, Int slot, Int other, bool decodes_first) {
    if (!is_offline(state, other)) return false;
    if (!is_offline(state, slot)) return true;
    if (decodes_first && decodes_now(state, slot) != decodes_now(state, other)) {
        return decodes_now(state, slot);
    }
    return state.sequences[slot].computed > state.sequences[other].computed;
}

// Sort the running list: online requests first, then offline ones by most computed tokens.
//
// A stable insertion sort from `first` on, as the list is nearly sorted. `decodes_first`: offline
// requests that decode come before those whose prompt is not computed yet.
COMPILED void sort(const State& state, Int first, bool decodes_first) {
    auto& running = state.running;
    for (Int i = first + 1; i < state.engine.running; i++) {
        const Int slot = running[i];
        Int place = i;
        while (place > first && stands_before(state, slot, running[place - 1], decodes_first)) {
            running[place] = running[place - 1];
            place -= 1;
        }
        running[place] = slot;
    }
}

// Preempt offline requests, least computed first, until online ones have blocks and seats.
//
// Returns the number of waiting online requests that the step has tokens for.
COMPILED Int make_way(const State& state, const Batch& batch, Int online) {
    auto& engine = state.engine;
    auto& counts = batch.counts;
    Int blocks = 0, arriving = 0, tokens = engine.max_num_scheduled_tokens, slot = engine.head;
    while (slot != NONE && tokens > 0 && !is_offline(state, slot)) {
        auto& seq = state.sequences[slot];
        const Int known = seq.prompt + seq.output;
        tokens -= known;
        blocks += blocks_for(state, known);
        arriving += 1;
        slot = seq.next;
    }
    for (Int i = 0; i < online; i++) {
        auto& seq = state.sequences[state.running[i]];
        const Int added = min(left_of(state, state.running[i]), engine.max_num_scheduled_tokens);
        blocks += max(Int(0), blocks_for(state, seq.computed + added) - seq.blocks);
    }
    if (arriving > 0) blocks += engine.watermark_blocks;
    while (engine.running > online &&
           (engine.free < blocks || engine.max_num_seqs - engine.running < arriving)) {
        batch.entries[counts.preempted].preempted = state.running[engine.running - 1];
        counts.preempted += 1;
        preempt(state, engine.running - 1);
    }
    return arriving;
}

// What online requests could compute in this step, without hits of the prefix cache.
COMPILED Sums online_shape(const State& state, Int online, Int arriving) {
    auto& engine = state.engine;
    Int left = engine.max_num_scheduled_tokens;
    Sums sums = {0, 0, 0, 0, 0, 0};
    for (Int i = 0; i < online; i++) {
        const Int slot = state.running[i], computed = state.sequences[slot].computed;
        const Int added = min(left, left_of(state, slot));
        if (added <= 0) continue;
        left -= added;
        if (added == 1 && decodes_now(state, slot)) {
            sums.decode_seqs += 1;
            sums.decode_pairs += computed + 1;
        } else {
            sums = with_prefill(sums, added, computed);
        }
    }
    Int slot = engine.head;
    for (Int i = 0; i < arriving; i++) {
        auto& seq = state.sequences[slot];
        const Int added = min(left, seq.prompt + seq.output);
        if (added <= 0) break;
        left -= added;
        sums = with_prefill(sums, added, 0);
        slot = seq.next;
    }
    return sums;
}

// Move the running request at `place` forward.
INLINED void move(const State& state, Int place, Int to) {
    auto& running = state.running;
    const Int slot = running[place];
    for (Int i = place; i > to; i--) running[i] = running[i - 1];
    running[to] = slot;
}

// Take the last `count` off the running list and keep them at the end of its array.
INLINED void park(const State& state, Int count) {
    auto& running = state.running;
    const Int shift = running.size - state.engine.running;
    for (Int i = running.size - 1; i > running.size - 1 - count; i--) {
        running[i] = running[i - shift];
    }
    state.engine.running -= count;
}

INLINED void unpark(const State& state, Int count) {
    auto& engine = state.engine;
    const Int first = state.running.size - count;
    for (Int i = 0; i < count; i++) state.running[engine.running + i] = state.running[first + i];
    engine.running += count;
}

// Make way for online requests, and plan the offline work that fits beside them.
COMPILED Plan begin(const State& state, const Batch& batch, const StepTime& model, double now_s) {
    auto& engine = state.engine;
    sort(state, 0, false);
    Int online = 0;
    while (online < engine.running && !is_offline(state, state.running[online])) online += 1;
    const Int arriving = make_way(state, batch, online);
    sort(state, online, true);
    Int decodes = online;
    while (decodes < engine.running && decodes_now(state, state.running[decodes])) decodes += 1;
    decodes -= online;
    const Int prefills = engine.running - online - decodes;
    Sums shape = online_shape(state, online, arriving);
    Int behind = 0, wanted = 0;
    if (arriving == 0 && (prefills > 0 || engine.waiting > 0)) {
        wanted = engine.max_num_scheduled_tokens;
    }
    if (prefills > 0) behind = state.sequences[state.running[online + decodes]].computed;
    const double most_s = longest_s(state, model, online, arriving, shape, now_s);
    const Fitting fitting = fit(state.sequences, state.running, model, shape, online, decodes,
                                behind, wanted, engine.max_num_scheduled_tokens, most_s);
    const Int count = fitting.decodes, tokens = fitting.tokens;
    shape = with_decodes(state.sequences, state.running, shape, online, count);
    Int taken = 0;
    if (prefills > 0 && tokens > 0) {
        taken = min(left_of(state, state.running[online + decodes]), tokens);
        move(state, online + decodes, online + count);
    }
    const Int free_seats = engine.max_num_seqs - engine.running;
    const Int left = arriving == 0 && free_seats > 0 ? tokens - taken : 0;
    const Int parked = engine.running - online - count - (taken > 0);
    park(state, parked);
    return {shape, parked, left, shape.prefill_tokens + shape.decode_seqs + tokens};
}

// `scheduling.schedule` for an engine that co-schedules.
COMPILED bool schedule_beside(const State& state, const Batch& batch, const StepTime& model,
                              double now_s) {
    if (!has_offline(state)) return schedule(state, batch);
    auto& engine = state.engine;
    auto& counts = batch.counts;
    const Int budget = engine.max_num_scheduled_tokens, seats = engine.max_num_seqs;
    counts.scheduled = counts.admitted = counts.preempted = 0;
    engine.encoder_budget = engine.max_num_encoder_input_tokens;
    const Plan plan = begin(state, batch, model, now_s);
    engine.max_num_scheduled_tokens = min(budget, plan.tokens);
    engine.max_num_seqs = max(Int(0), seats - plan.parked);
    const Int made = counts.preempted, threshold = long_prefill_threshold(state);
    const bool defers = defers_prefills(state);
    Int token_budget = schedule_running(state, batch, threshold, defers);
    if (counts.preempted == made) {
        token_budget = schedule_waiting(state, batch, token_budget, threshold, defers);
        admit_offline(state, batch, model, plan.shape, plan.prefill_left, plan.parked, token_budget,
                      threshold);
    }
    engine.max_num_scheduled_tokens = budget;
    engine.max_num_seqs = seats;
    unpark(state, plan.parked);
    if (counts.scheduled == 0 && counts.preempted == 0) return false;
    advance(state, batch);
    return true;
}

}  // namespace foretell::cosched
