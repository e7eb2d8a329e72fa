// One engine whose time the caller keeps: simulated, replayed or emulated.
//
// The loop is that of forecasts (`loop.h`). The caller advances the engine when a step ends, or
// when a request arrives at an idle engine.

#pragma once

#include "start.h"

namespace foretell::live {

using namespace start;

// Calls between two recounts of all blocks with identity; a recount takes as long as a step.
constexpr Int CHECK_POOL_EVERY = 256;

// The arrays of one engine and of its steps in flight, described at `foretell.kernel.live`.
struct Live {
    Array<LiveRecord> records;
    Array<Sequence> sequences;
    Array<Int32> running;
    Array<Block> blocks;
    Array<Place> places;
    Array<Int32> first_with;
    Array<Input> inputs;
    Array<Entry> older;
    Array<Entry> newer;
    Array<Belief> beliefs;
};

// The limits that every step is checked against.
struct Limits {
    Int max_num_scheduled_tokens, max_num_seqs;
};

// Sum up free blocks over the time since they last changed.
//
// Call it before blocks are taken or freed other than by `advance`, and at the end.
COMPILED void count_free(const Live& live, double now_s) {
    auto& engine = live.records[0].at.engine;
    auto& tally = live.records[0].tally;
    const double seconds = min(now_s, tally.until_s) - tally.counted_s;
    if (seconds > 0.0) {
        const double free = double(engine.free);
        tally.counted_for_s += seconds;
        tally.free_s += seconds * free;
        tally.free_squared_s += seconds * free * free;
        tally.counted_s += seconds;
    }
}

COMPILED void check_batch(const State& state, const Batch& batch, Int max_num_scheduled_tokens) {
    auto& counts = batch.counts;
    Int tokens = 0;
    for (Int i = 0; i < counts.scheduled; i++) {
        require(state.broken, batch.entries[i].tokens > 0, "scheduled no tokens");
        tokens += batch.entries[i].tokens;
    }
    require(state.broken, tokens <= max_num_scheduled_tokens, "tokens over budget");
    const Int shape = counts.prefill_tokens + counts.decode_seqs + counts.draft_tokens;
    require(state.broken, tokens == shape, "a shape does not hold its tokens");
}

// End the oldest step in flight, if any and if it `lands`, and schedule at most `steps` steps.
//
// Returns how many were scheduled. Every step is checked against the limits. Fills `outcome`: how
// many sequences the step ended and which of the two batches it was. `clock.first_end_s` becomes
// the end of the oldest step in flight. `broken` reports invalid step times and broken invariants
// of a received state; with other broken invariants the process ends.
COMPILED Int advance(const Live& live, const StepTime& model, double now_s, bool lands, Int steps,
                     const Limits& limits, Int* outcome, Broken& broken) {
    auto& records = live.records[0].at;
    auto& tally = live.records[0].tally;
    auto& clock = records.clock;
    broken = {tally.told == 0, nullptr};
    const State state = {records.engine, live.sequences,  live.running, live.blocks,
                         live.places,    live.first_with, live.inputs,  broken};
    const Loop loop = {state, {{records.older, live.older}, {records.newer, live.newer}}, clock};
    count_free(live, now_s);
    clock.now_s = now_s;
    tally.calls += 1;
    outcome[0] = outcome[1] = 0;
    if (lands && clock.in_flight > 0) {
        const Int landed = clock.oldest;
        land(loop);
        tally.completed += 1;
        outcome[0] = loop.batches[landed].counts.finished;
        outcome[1] = landed;
    }
    Int scheduled = 0;
    while (scheduled < steps && schedule_next(loop, model)) {
        scheduled += 1;
        const Int index = newest(loop);
        auto& batch = loop.batches[index];
        auto& counts = batch.counts;
        const double begun_s = clock.in_flight == 0 ? now_s : max(now_s, clock.last_end_s);
        tally.begun_s[index] = begun_s;
        launch(loop, batch_s(model, counts));
        tally.scheduled += 1;
        tally.tokens += counts.prefill_tokens + counts.decode_seqs + counts.draft_tokens;
        if (counts.scheduled > 0 && !(clock.last_end_s > begun_s)) {
            broken.invariant = "a step took no time";  // due to the caller's model
        }
        check_batch(state, batch, limits.max_num_scheduled_tokens);
        if (counts.scheduled == 0 || !is_whole(broken)) break;
    }
    require(broken, state.engine.running <= limits.max_num_seqs, "too many requests run");
    if (!state.engine.knows_content || tally.calls % CHECK_POOL_EVERY == 0) check(state);
    return scheduled;
}

// Make at most `steps` steps, one by one, up to the first that admits, preempts or ends a request,
// or until nothing is left; returns how many.
//
// Fills `shapes`, (steps, 5), in the order of `BatchShape`, and `outcome` with how many sequences
// the last step ended and which of the two batches it was. No step may be in flight.
COMPILED Int run_steps(const Live& live, const StepTime& model, Int steps, const Limits& limits,
                       Int* outcome, const Table<Int>& shapes, Broken& broken) {
    Int made = 0;
    while (made < steps) {
        if (advance(live, model, 0.0, false, 1, limits, outcome, broken) < 1) break;
        if (!is_whole(broken)) break;
        auto& at = live.records[0].at;
        auto& counts = at.clock.oldest == 1 ? at.newer : at.older;
        const Array<Int> shape = shapes[made];
        shape[0] = counts.prefill_seqs;
        shape[1] = counts.prefill_tokens;
        shape[2] = counts.prefill_pairs;
        shape[3] = counts.decode_seqs;
        shape[4] = counts.decode_pairs;
        advance(live, model, 0.0, true, 0, limits, outcome, broken);
        made += 1;
        if (counts.admitted + counts.preempted + counts.finished > 0 || !is_whole(broken)) break;
    }
    return made;
}

// Fill the fields that running and waiting requests share; returns whether the length is certain.
COMPILED bool publish_request(const Live& live, Int slot, Request& request) {
    auto& seq = live.sequences[slot];
    auto& belief = live.beliefs[slot];
    request.arrival_s = seq.arrival_s;
    request.priority = seq.priority;
    request.preemptions = seq.preemptions;
    request.adapter = seq.adapter;
    request.inputs = request.older = 0;
    request.ttft_target_s = seq.ttft_target_s;
    request.tpot_target_s = seq.tpot_target_s;
    const bool has_targets = seq.ttft_target_s > 0.0 || seq.tpot_target_s > 0.0;
    if (has_targets && seq.first_token_s < INFINITY) {
        request.ttft_target_s = seq.first_token_s - seq.arrival_s;
    }
    request.prompt = seq.prompt;
    request.output = seq.output;
    request.max_tokens = seq.max_tokens;
    request.key = belief.key;
    for (Int i = 0; i < WIDTH; i++) request.length[i] = belief.length[i];
    return belief.length[0] == belief.length[WIDTH - 2] && belief.length[WIDTH - 1] == 0.0;
}

COMPILED void publish_steps(const Live& live, Snapshot& header) {
    auto& at = live.records[0].at;
    auto& clock = at.clock;
    header.steps = clock.in_flight;
    header.begun_s = live.records[0].tally.begun_s[clock.oldest];
    for (Int i = 0; i < clock.in_flight; i++) {
        auto& counts = ((clock.oldest + i) & 1) == 0 ? at.older : at.newer;
        auto& shape = header.shapes[i];
        shape[0] = counts.prefill_seqs;
        shape[1] = counts.prefill_tokens;
        shape[2] = counts.prefill_pairs;
        shape[3] = counts.decode_seqs;
        shape[4] = counts.decode_pairs;
        shape[5] = counts.draft_tokens;
    }
}

// Fill the engine's snapshot as one that it would publish at this moment.
COMPILED void publish(const Live& live, const Snapshots& snapshots, Int index, double now_s) {
    auto& header = snapshots.headers[index];
    auto& at = live.records[0].at;
    auto& engine = at.engine;
    auto& clock = at.clock;
    const Array<Request> requests = snapshots.requests[index];
    header.engine = engine;
    header.known_s = now_s;
    header.contents = header.inputs = 0;  // simulated prompts have no multimodal inputs
    header.version += 1;
    const bool newest_is_older = ((clock.oldest + clock.in_flight + 1) & 1) == 0;
    auto& newest_counts = newest_is_older ? at.older : at.newer;
    const Array<Entry> entries = newest_is_older ? live.older : live.newer;
    const Int scheduled = clock.in_flight > 0 ? newest_counts.scheduled : 0;
    Int count = 0, entry = 0, waiting_blocks = 0;
    bool certain = true;
    for (Int i = 0; i < engine.running; i++) {
        const Int slot = live.running[i];
        auto& seq = live.sequences[slot];
        auto& request = requests[count];
        certain &= publish_request(live, slot, request);
        request.cached_tokens = seq.cached;
        request.computed = seq.computed;
        request.blocks = seq.blocks;
        request.left = seq.left;
        request.scheduled = 0;
        request.in_flight = seq.placeholders;
        // Entries are in the order of the running list, without sequences that compute nothing.
        for (Int j = 0; j < scheduled; j++) {
            const Int place = (entry + j) % scheduled;
            if (entries[place].slot == slot) {
                request.scheduled = entries[place].tokens;
                entry = place + 1;
                break;
            }
        }
        count += 1;
    }
    Int slot = engine.head;
    while (slot != NONE) {
        auto& seq = live.sequences[slot];
        auto& request = requests[count];
        certain &= publish_request(live, slot, request);
        // A request that has not run yet is shown with the hits that its predictor expects.
        request.cached_tokens = seq.preemptions ? Int(seq.cached) : seq.hits * engine.block_size;
        request.computed = request.blocks = request.scheduled = request.in_flight = 0;
        request.left = 0;
        waiting_blocks += blocks_to_admit(engine, 0, request.prompt + request.output, 0);
        count += 1;
        slot = seq.next;
    }
    auto& figures = header.figures;
    figures[REQUESTS] = count;
    figures[RUNNING_REQUESTS] = engine.running;
    figures[FREE_BLOCKS] = engine.free;
    figures[WAITING_BLOCKS] = waiting_blocks;
    figures[CERTAIN] = certain;
    publish_steps(live, header);
}

}  // namespace foretell::live
