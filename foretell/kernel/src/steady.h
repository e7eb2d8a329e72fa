// Steps decoding requests in bulk, so that an iteration costs only what changes in it.
//
// A request that decodes changes in the same way in every iteration: one more token, now and then a
// block, until an end that is known beforehand. While no request can be preempted, all such
// requests, the *steady* ones, are kept as sums. Only requests that are prefilled, admitted or end
// are touched. The state of a steady request is its state on entry plus the number of iterations
// since then; `leave` writes it out. Cases that the sums cannot handle (a shortage of blocks, an
// unusual order) are left to `scheduling.h`, which does the same one request at a time.
//
// It needs blocks without content, and no drafts. Iterations are those of `rollout`: schedule one
// step, apply the output of the oldest step in flight.

#pragma once

#include "scheduling.h"

namespace foretell::steady {

using namespace scheduling;

constexpr Int NEVER = INT32_MAX;

// The sums, and the next event of each slot.
struct Steady {
    SteadySums& sums;
    // The iteration after which a slot has its next event; `NEVER` if it is not steady.
    Array<Int32> due;
    // Numbers of scheduled requests by residue: those of residue h open a block in iterations i
    // for which h + i - 1 is a multiple of the block size.
    Array<Int32> opening;
    // The same for requests whose windows leave a block of each local group behind.
    Array<Int32> leaving;
};

// Whether its window leaves one block behind at a time, as usual for a request that decodes.
INLINED bool in_step(const State& state, const Sequence& seq) {
    const Int ahead = state.engine.depth - 1;
    if (seq.left == 0 && left_behind(state, max(Int(0), seq.computed - ahead)) == 0) return true;
    return seq.in_flight == ahead && seq.left == left_behind(state, seq.computed - ahead - 1);
}

// The blocks that a steady request has left behind after `steps` scheduled steps.
INLINED Int left_after(const State& state, const Sequence& seq, Int steps) {
    if (state.engine.local_groups == 0 || steps <= 0) return seq.left;
    const Int processed = seq.computed + steps - 1 - (state.engine.depth - 1);
    return max(seq.left, left_behind(state, processed));
}

// The iteration from which on the window of a steady request slides; `NEVER` without a window.
INLINED Int slides_from(const State& state, const Sequence& seq) {
    if (state.engine.local_groups == 0 || state.engine.chunk > 0) return NEVER;
    const Int processed = seq.computed - (state.engine.depth - 1);
    return seq.entered + max(Int(0), state.engine.window - processed);
}

// Add `count` (1 or -1) requests whose windows leave blocks behind.
INLINED void slide(const State& state, const Steady& steady, const Sequence& seq, Int count) {
    const Int first = seq.computed - (state.engine.depth - 1) - state.engine.window + 1;
    steady.leaving[floor_mod(first - seq.entered, state.engine.block_size)] += count;
    steady.sums.sliding += count;
}

// The next iteration after `iteration` that leaves a chunk behind; `NEVER` without chunks.
INLINED Int next_chunk(const State& state, const Sequence& seq, Int iteration) {
    const Int chunk = state.engine.chunk;
    if (state.engine.local_groups == 0 || chunk == 0) return NEVER;
    const Int processed = seq.computed - (state.engine.depth - 1) + iteration - seq.entered;
    return iteration + chunk - floor_mod(processed, chunk);
}

// Add the blocks that a request leaves behind in the next iteration; it has left `left` so far.
INLINED void give_up(const State& state, const Steady& steady, const Sequence& seq, Int left) {
    const Int since = steady.sums.iteration - seq.entered;
    const Int processed = seq.computed - (state.engine.depth - 1) + since;
    const Int blocks = left_behind(state, processed) - left;
    steady.sums.given_up += state.engine.local_groups * max(Int(0), blocks);
}

COMPILED void join(const State& state, const Steady& steady, Int slot) {
    auto& engine = state.engine;
    auto& sums = steady.sums;
    auto& seq = state.sequences[slot];
    const Int ahead = engine.depth - 1, now = sums.iteration;
    const Int room = engine.max_model_len - seq.prompt - seq.output;
    const Int tokens = min(seq.stop_after - seq.output, room);
    Int scheduled = min(tokens, room - ahead);
    if (ahead > 0 && seq.max_tokens > 0) {
        // Its end by `max_tokens` is foreseen, so it is not in the step behind its last token.
        scheduled = min(scheduled, seq.max_tokens - seq.output - ahead);
    }
    seq.entered = now;
    seq.last = now + scheduled;
    seq.end = now + tokens;
    if (scheduled > 0) {
        const Int slides = slides_from(state, seq);
        if (slides <= now) slide(state, steady, seq, 1);
        steady.due[slot] = now < slides && slides < seq.last ? slides : Int(seq.last);
        if (engine.chunk > 0) {
            give_up(state, steady, seq, seq.left);
            steady.due[slot] = min(seq.last, next_chunk(state, seq, now));
        }
        sums.scheduled += 1;
        sums.pairs += seq.computed + 1;
        steady.opening[floor_mod(seq.computed - now, engine.block_size)] += 1;
    } else {
        steady.due[slot] = seq.end;
    }
    sums.next_event = min(sums.next_event, steady.due[slot]);
}

// Apply the event that is due for `slot` after the iteration; returns whether it ends.
INLINED bool pass_event(const State& state, const Steady& steady, Int slot, double now_s) {
    auto& engine = state.engine;
    auto& sums = steady.sums;
    auto& seq = state.sequences[slot];
    if (sums.iteration < seq.last) {
        if (engine.chunk > 0) {
            give_up(state, steady, seq, left_after(state, seq, sums.iteration - seq.entered));
            steady.due[slot] = min(seq.last, next_chunk(state, seq, sums.iteration));
        } else {
            slide(state, steady, seq, 1);
            steady.due[slot] = seq.last;
        }
        return false;
    }
    const Int computed = seq.computed + seq.last - seq.entered;
    if (seq.last == sums.iteration && seq.last > seq.entered) {
        sums.scheduled -= 1;
        sums.pairs -= computed + 1;
        steady.opening[floor_mod(seq.computed - seq.entered, engine.block_size)] -= 1;
        if (slides_from(state, seq) < seq.last) slide(state, steady, seq, -1);
    }
    steady.due[slot] = seq.end;
    if (seq.end > sums.iteration) return false;
    const Int left = left_after(state, seq, seq.last - seq.entered);
    take(state, -held_by(state, blocks_for(state, computed), left));
    steady.due[slot] = NEVER;
    seq.blocks = seq.left = 0;
    seq.output += seq.end - seq.entered;
    seq.status = ENDED;
    seq.finished_s = now_s;
    return true;
}

// Whether a step in flight will sample tokens for a request that was preempted since.
COMPILED bool delivers_to_waiting(const State& state, const Batch& batch) {
    if (batch.counts.scheduled == state.engine.running) return false;
    for (Int i = 0; i < batch.counts.scheduled; i++) {
        if (state.sequences[batch.entries[i].slot].status == WAITING) return true;
    }
    return false;
}

// Make all decoding requests steady; false, with nothing changed, if that is impossible, as when
// one of the others does not prefill.
//
// With a step in flight, `in_flight`, decoding requests must have a token in it.
COMPILED bool enter(const State& state, const Steady& steady, const Batch& in_flight) {
    auto& engine = state.engine;
    auto& sums = steady.sums;
    const Int ahead = engine.depth - 1;
    if (engine.knows_content || engine.drafts > 0) return false;
    if (ahead > 0 && delivers_to_waiting(state, in_flight)) return false;
    Int members = 0;
    for (Int i = 0; i < engine.running; i++) {
        auto& seq = state.sequences[state.running[i]];
        const Int known = seq.prompt + seq.output;
        const bool decodes = seq.output > 0 && seq.computed == known - 1 + ahead;
        if (members == i && decodes && seq.placeholders == ahead) {
            if (seq.blocks != blocks_for(state, seq.computed) || !in_step(state, seq)) return false;
            members += 1;
        } else if (seq.placeholders > 0 || seq.computed >= known) {
            return false;
        }
    }
    if (members == 0) return false;
    sums.active = 1;
    sums.members = members;
    sums.next_event = NEVER;
    sums.iteration = sums.scheduled = sums.pairs = sums.sliding = sums.given_up = 0;
    for (Int i = 0; i < steady.opening.size; i++) steady.opening[i] = steady.leaving[i] = 0;
    for (Int i = 0; i < members; i++) join(state, steady, state.running[i]);
    return true;
}

// Write out every steady request, and with a step in flight also its entries there.
COMPILED void leave(const State& state, const Steady& steady, const Batch& in_flight) {
    auto& engine = state.engine;
    auto& sums = steady.sums;
    auto& counts = in_flight.counts;
    const Int now = sums.iteration, ahead = engine.depth - 1;
    for (Int i = 0; i < sums.members; i++) {
        const Int slot = state.running[i];
        auto& seq = state.sequences[slot];
        if (now > seq.entered) {
            seq.output += now - seq.entered;
            const Int steps = min(now, seq.last) - seq.entered;
            seq.left = left_after(state, seq, steps);
            seq.computed += steps;
            seq.blocks = blocks_for(state, seq.computed);
            seq.placeholders = seq.in_flight = ahead;
            seq.is_prefill_chunk = 0;
            if (ahead > 0 && seq.last >= now) {
                auto& entry = in_flight.entries[counts.scheduled];
                entry.slot = slot;
                entry.tokens = entry.samples = 1;
                counts.scheduled += 1;
            }
        }
        steady.due[slot] = NEVER;
    }
    sums.active = sums.members = 0;
}

// The number of steady requests that open a block in an iteration.
INLINED Int opened_in(const State& state, const Steady& steady, Int iteration) {
    return steady.opening[floor_mod(-iteration, state.engine.block_size)];
}

// The blocks that steady requests open in an iteration, minus those that they leave behind.
INLINED Int blocks_taken(const State& state, const Steady& steady, Int iteration) {
    auto& engine = state.engine;
    const Int residue = floor_mod(-iteration, engine.block_size);
    return engine.groups * steady.opening[residue] - engine.local_groups * steady.leaving[residue];
}

// Whether the next iteration preempts no request and schedules all steady ones.
INLINED bool can_schedule(const State& state, const Steady& steady, Int threshold) {
    auto& engine = state.engine;
    auto& sums = steady.sums;
    Int token_budget = engine.max_num_scheduled_tokens - sums.scheduled;
    // The result must not depend on blocks that are left behind before others are taken.
    Int blocks = opened_in(state, steady, sums.iteration);
    if (token_budget < 0) return false;
    for (Int i = sums.members; i < engine.running; i++) {
        const Int slot = state.running[i];
        const Int tokens = wanted_tokens(state, slot, threshold, token_budget);
        if (tokens <= 0) break;
        auto& seq = state.sequences[slot];
        blocks += max(Int(0), blocks_for(state, seq.computed + tokens) - seq.blocks);
        token_budget -= tokens;
    }
    return engine.groups * blocks <= engine.free;
}

// Schedule steady requests in the sums and all others in `batch`; false for an empty step.
//
// Only call it if `can_schedule`.
INLINED bool schedule_rest(const State& state, const Steady& steady, const Batch& batch) {
    auto& engine = state.engine;
    auto& sums = steady.sums;
    auto& counts = batch.counts;
    const Int threshold = long_prefill_threshold(state);
    counts.scheduled = counts.admitted = counts.preempted = 0;
    Int token_budget = engine.max_num_scheduled_tokens - sums.scheduled;
    take(state, blocks_taken(state, steady, sums.iteration) - sums.given_up);
    sums.given_up = 0;
    engine.encoder_budget = engine.max_num_encoder_input_tokens;
    for (Int i = sums.members; i < engine.running; i++) {
        const Int slot = state.running[i];
        const Int tokens = wanted_tokens(state, slot, threshold, token_budget);
        if (tokens <= 0) break;
        const bool grown = grow(state, slot, state.sequences[slot].computed + tokens);
        require(state.broken, grown, "blocks were counted");
        auto& entry = batch.entries[counts.scheduled];
        entry.slot = slot;
        entry.tokens = tokens;
        counts.scheduled += 1;
        token_budget -= tokens;
    }
    schedule_waiting(state, batch, token_budget, threshold, false);
    advance(state, batch);
    counts.decode_seqs += sums.scheduled;
    counts.decode_pairs += sums.pairs;
    return counts.prefill_seqs + counts.decode_seqs > 0;
}

// Apply the output of the oldest step; `batch` has its entries without steady requests.
INLINED void deliver(const State& state, const Steady& steady, const Batch& batch, double now_s) {
    const Int ahead = state.engine.depth - 1, longest = state.engine.max_model_len;
    bool ended = false;
    for (Int i = 0; i < batch.counts.scheduled; i++) {
        auto& entry = batch.entries[i];
        const Int slot = entry.slot;
        auto& seq = state.sequences[slot];
        if (seq.status == ENDED) continue;
        if (entry.samples && seq.output == 0) seq.first_token_s = now_s;
        if (ahead > 0 && steady.due[slot] != NEVER) continue;  // it has become steady
        seq.in_flight -= entry.tokens;
        if (seq.encoding > 0) free_processed(state, slot, 0);
        if (!entry.samples) continue;
        seq.output += 1;
        seq.placeholders -= 1;
        if (seq.output >= seq.stop_after || seq.prompt + seq.output >= longest) {
            release(state, slot);
            if (seq.encoding > 0) free_inputs(state, slot);
            seq.status = ENDED;
            seq.finished_s = now_s;
            ended = true;
        }
    }
    if (ended) drop_ended(state);
}

// Advance by `iterations`, at most to the next event; requests that end then end at `now_s`.
INLINED void advance_steady(const State& state, const Steady& steady, Int iterations,
                            double now_s) {
    auto& sums = steady.sums;
    sums.iteration += iterations;
    sums.pairs += sums.scheduled * iterations;
    if (sums.iteration < sums.next_event) return;
    const Int now = sums.iteration;
    Int following = NEVER, ended = 0;
    for (Int i = 0; i < sums.members; i++) {
        const Int slot = state.running[i];
        if (steady.due[slot] == now) ended += pass_event(state, steady, slot, now_s);
        following = min(following, steady.due[slot]);
    }
    sums.next_event = following;
    if (ended > 0) {
        sums.members -= ended;
        drop_ended(state);
    }
}

// Make requests steady that begin to decode with the newest step, `batch`.
//
// False if one of them is behind one that does not decode, as the sums cannot keep that order, or
// if its window does not leave blocks behind regularly yet.
INLINED bool join_sampled(const State& state, const Steady& steady, const Batch& batch) {
    auto& engine = state.engine;
    auto& sums = steady.sums;
    for (Int i = 0; i < batch.counts.scheduled; i++) {
        auto& entry = batch.entries[i];
        if (!entry.samples || state.sequences[entry.slot].status == ENDED) continue;
        if (sums.members == engine.running) return false;
        if (state.running[sums.members] != entry.slot) return false;
        if (!in_step(state, state.sequences[entry.slot])) return false;
        sums.members += 1;
        join(state, steady, entry.slot);
    }
    return true;
}

// The tokens that `slot` has generated.
INLINED Int output_of(const State& state, const Steady& steady, Int slot) {
    auto& seq = state.sequences[slot];
    const Int since = steady.due[slot] == NEVER ? 0 : steady.sums.iteration - seq.entered;
    return seq.output + since;
}

// How many of the next `most` iterations have enough free blocks.
INLINED Int iterations_that_fit(const State& state, const Steady& steady, Int most) {
    auto& engine = state.engine;
    auto& sums = steady.sums;
    const Int cycles = floor_div(most, engine.block_size);
    if ((cycles + 1) * engine.groups * sums.scheduled <= engine.free) return most;
    Int free = engine.free;
    for (Int i = 0; i < most; i++) {
        if (engine.groups * opened_in(state, steady, sums.iteration + i) > free) return i;
        free -= blocks_taken(state, steady, sums.iteration + i);
        if (i == 0) free += sums.given_up;
    }
    return most;
}

// Take the blocks that steady requests open in the next `iterations`, minus those that they leave
// behind.
INLINED void take_steady_blocks(const State& state, const Steady& steady, Int iterations) {
    auto& engine = state.engine;
    auto& sums = steady.sums;
    const Int cycle = engine.groups * sums.scheduled - engine.local_groups * sums.sliding;
    Int blocks = floor_div(iterations, engine.block_size) * cycle - sums.given_up;
    sums.given_up = 0;
    for (Int i = 0; i < floor_mod(iterations, engine.block_size); i++) {
        blocks += blocks_taken(state, steady, sums.iteration + i);
    }
    take(state, blocks);
}

}  // namespace foretell::steady
