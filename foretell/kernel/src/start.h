// The start of forecasts: the engine of a snapshot, and the requests on their way to it.

#pragma once

#include "lengths.h"
#include "rollout.h"

namespace foretell::start {

using namespace lengths;
using namespace rollout;

// Places in `Snapshot.figures`.
constexpr Int REQUESTS = 0, RUNNING_REQUESTS = 1, FREE_BLOCKS = 2, WAITING_BLOCKS = 3, CERTAIN = 4;

// Places in `Scratch`: the state from which every rollout starts, the state that a rollout changes,
// and an empty state.
constexpr Int START = 0, WORK = 1, BLANK = 2;
constexpr Int OLDER = 0, NEWER = 1;
constexpr Int RUNNING_SLOTS = 0, ARRIVALS = 1, WATCHED = 2, DUE = 3;

// The snapshots of m engines, all with room for the same number of requests.
struct Snapshots {
    Array<Snapshot> headers;
    Table<Request> requests;
    Table<Input> inputs;
};

// Working memory of forecasts, reused by all of them so that it stays in the CPU's cache. It is
// described at `foretell.kernel.forecasts`.
struct Scratch {
    Array<Records> records;
    Table<Sequence> sequences;
    Table<Entry> entries;  // row 2 * `START` + `OLDER`, and so on
    Table<Int32> slots;
    Table<Int32> residues;
    Array<Int> totals;
    Array<Block> blocks;
    Array<Place> places;
    Table<Input> inputs;
    Broken& broken;
};

COMPILED void restore_snapshot_inputs(const Snapshots& snapshots, Int index, const Scratch& scratch) {
    auto& header = snapshots.headers[index];
    auto& records = scratch.records[START];
    const Array<Input> rows = scratch.inputs[START];
    records.inputs = header.contents + header.inputs;
    for (Int i = 0; i < records.inputs; i++) rows[i] = snapshots.inputs.at(index, i);
    const Array<Int32> none = {scratch.slots.data, 0};
    const State state = {records.engine,  scratch.sequences[START], none, scratch.blocks,
                         scratch.places, none,                     rows, scratch.broken};
    restore_inputs(state, header.contents);
}

COMPILED void restore_steps(const Snapshots& snapshots, Int index, const Scratch& scratch) {
    auto& header = snapshots.headers[index];
    auto& records = scratch.records[START];
    auto& clock = records.clock;
    const Array<Request> requests = snapshots.requests[index];
    const Array<Sequence> rows = scratch.sequences[START];
    const Array<Entry> older_entries = scratch.entries[2 * START + OLDER];
    const Array<Entry> newer_entries = scratch.entries[2 * START + NEWER];
    const Int depth = records.engine.depth, most_drafts = records.engine.drafts;
    // Counts of entries: of the step before the newest one, and of the newest one.
    Int before = 0, now = 0;
    for (Int i = 0; i < header.figures[RUNNING_REQUESTS]; i++) {
        auto& row = rows[i];
        const Int tokens = requests[i].scheduled, unknown = requests[i].in_flight;
        const Int known = row.prompt + row.output;
        Int older = 0, drafts = 0;
        bool samples = tokens > 0 && row.computed >= known;
        if (depth > 1) {
            samples = tokens > 0 && unknown > 0 && row.computed >= known + unknown - 1;
            // Draft tokens count as unknown, like the token behind them.
            older = samples ? max(Int(0), unknown - tokens) : unknown;
            older = min(older, 1 + most_drafts);
            drafts = unknown - older - 1;
        } else if (samples) {
            drafts = row.computed - known;
        }
        drafts = max(Int(0), min(min(drafts, tokens - 1), most_drafts));
        const Int computed = max(older, requests[i].older);
        row.placeholders = samples + drafts + older;
        row.in_flight = tokens + computed;
        // A preempted sequence that is recomputed and has a single token left is taken for one that
        // decodes if it is not in the newest step.
        const bool catches_up = tokens > 0 ? !samples : row.computed < known + unknown - 1;
        row.is_prefill_chunk = row.computed < row.prompt || catches_up;
        if (most_drafts > 0 && !row.is_prefill_chunk) {
            if (depth > 1) {
                row.drafts = most_drafts;
            } else if (tokens == 0) {
                row.drafts = drafted_tokens(records.engine, row);
            }
        }
        if (computed > 0) {
            auto& entry = older_entries[before];
            entry.slot = i;
            entry.tokens = computed;
            entry.samples = older > 0;
            entry.drafts = max(Int(0), older - 1);
            before += 1;
        }
        if (tokens > 0) {
            auto& entry = newer_entries[now];
            entry.slot = i;
            entry.tokens = tokens;
            entry.samples = samples;
            entry.drafts = drafts;
            now += 1;
        }
    }
    records.older.scheduled = before;
    records.newer.scheduled = now;
    if (header.steps > 1 && before + now > 0) {
        clock.oldest = 0;
        clock.in_flight = 2;
    } else if (before > 0) {
        clock.oldest = 0;
        clock.in_flight = 1 + (now > 0);
    } else {
        clock.oldest = 1;
        clock.in_flight = now > 0;
    }
    clock.launched = clock.in_flight;
}

// Write the engine of a snapshot to `START`: its state and its steps in flight.
//
// Its requests get the first slots in their order; until lengths are set they end with their next
// token. The snapshot has the tokens of the newest step in flight. With async scheduling, the count
// of unknown tokens shows which requests sample in the step before. The other tokens of that step
// are published if they decide when multimodal inputs are let go; otherwise they matter only to a
// request that is preempted before that step ends. Grammars count as compiled. With prefix sharing
// in a real engine, the blocks that requests hold may add up to more than exist; free blocks are as
// published. Nothing is done if this snapshot was the last one written: rollouts leave `START`.
COMPILED void restore(const Snapshots& snapshots, Int index, const Scratch& scratch) {
    auto& header = snapshots.headers[index];
    auto& records = scratch.records[START];
    const Array<Request> requests = snapshots.requests[index];
    const Array<Sequence> rows = scratch.sequences[START];
    if (records.index == index && records.version == header.version) return;
    records = scratch.records[BLANK];
    records.index = index;
    records.version = header.version;
    records.engine = header.engine;
    auto& engine = records.engine;
    Int held = 0;
    const Int count = header.figures[REQUESTS], running = header.figures[RUNNING_REQUESTS];
    for (Int i = 0; i < count; i++) {
        auto& request = requests[i];
        auto& row = rows[i];
        row = scratch.sequences.at(BLANK, 0);
        row.arrival_s = request.arrival_s;
        row.priority = request.priority;
        row.prompt = request.prompt;
        row.output = request.output;
        row.max_tokens = request.max_tokens;
        row.preemptions = request.preemptions;
        row.adapter = request.adapter;
        row.inputs = request.inputs;
        row.ttft_target_s = request.ttft_target_s;
        row.tpot_target_s = request.tpot_target_s;
        if (request.cached_tokens > 0) {  // a division takes as long as all else here
            row.hits = floor_div(request.cached_tokens, engine.block_size);
        }
        if (i < running) {
            row.status = RUNNING;
            row.computed = request.computed;
            row.blocks = request.blocks;
            row.left = request.left;
            held += engine.groups * row.blocks - engine.local_groups * row.left;
        } else {
            row.status = WAITING;
            if (i > running) {
                row.previous = i - 1;
                rows[i - 1].next = i;
            }
        }
    }
    engine.running = running;
    engine.waiting = count - running;
    engine.head = count > running ? running : NONE;
    engine.tail = count > running ? count - 1 : NONE;
    engine.knows_content = engine.unhashed = 0;
    engine.blank_head = engine.lru_head = engine.lru_tail = NONE;
    engine.free = header.figures[FREE_BLOCKS];
    engine.held = held;
    engine.owned = engine.free + held;
    if (header.contents > 0) restore_snapshot_inputs(snapshots, index, scratch);
    restore_steps(snapshots, index, scratch);
}

// Write the sequences of `arrival` to `START`, from `slot` on.
//
// They join the queue `delay_s` after the times of the arrival; `cached` tokens of their prompt are
// cached.
COMPILED void expect(const Scratch& scratch, const Arrival& arrival, double delay_s, Int cached,
                     Int slot) {
    const Array<Sequence> rows = scratch.sequences[START];
    auto& engine = scratch.records[START].engine;
    for (Int i = 0; i < arrival.sequences; i++) {
        auto& row = rows[slot + i];
        row = scratch.sequences.at(BLANK, 0);
        row.status = EXPECTED;
        row.priority = arrival.priority;
        row.ttft_target_s = arrival.ttft_target_s;
        row.tpot_target_s = arrival.tpot_target_s;
        row.arrival_s = arrival.at_s + delay_s + double(i) * arrival.every_s;
        if (cached > 0) row.hits = floor_div(cached, engine.block_size);
        row.prompt = min(arrival.prompt, engine.max_model_len - 1);
        row.max_tokens = min(arrival.max_tokens, engine.max_model_len);
    }
}

// List the slots from `first` up to `end` by arrival time.
//
// A stable insertion sort: they are few and nearly sorted.
COMPILED void sort_arrivals(const Scratch& scratch, Int first, Int end) {
    const Array<Sequence> rows = scratch.sequences[START];
    const Array<Int32> arrivals = scratch.slots[ARRIVALS];
    for (Int slot = first; slot < end; slot++) {
        Int place = slot - first;
        const double at_s = rows[slot].arrival_s;
        while (place > 0 && rows[arrivals[place - 1]].arrival_s > at_s) {
            arrivals[place] = arrivals[place - 1];
            place -= 1;
        }
        arrivals[place] = slot;
    }
}

// Set when the steps in flight end, from their begin and their predicted times.
//
// Up to the time until which the snapshot is known to be true, silence means that the step in
// flight still runs. Rollouts continue from there.
COMPILED void set_clock(const Snapshots& snapshots, Int index, const StepTime& model,
                        const Scratch& scratch) {
    auto& header = snapshots.headers[index];
    auto& clock = scratch.records[START].clock;
    clock.now_s = header.known_s;
    double first_s = clock.now_s, last_s = clock.now_s, end_s = header.begun_s;
    for (Int i = 0; i < header.steps; i++) {
        auto& shape = header.shapes[i];
        end_s += step_s(model, {shape[0], shape[1], shape[2], shape[3], shape[4], shape[5]});
        end_s = max(end_s, clock.now_s);
        if (i == 0) first_s = end_s;
        last_s = end_s;
    }
    clock.first_end_s = clock.in_flight > 1 ? first_s : last_s;
    clock.last_end_s = last_s;
}

// Draw the output lengths of a snapshot's requests: the first columns of `totals`.
COMPILED void draw_requests(const Snapshots& snapshots, Int index, Int seed,
                            const Table<Int>& totals) {
    const Array<Request> requests = snapshots.requests[index];
    for (Int i = 0; i < snapshots.headers[index].figures[REQUESTS]; i++) {
        auto& request = requests[i];
        draw_levels(request.length, request.output, request.key, seed, totals, i);
    }
}

// Draw the output lengths of an arrival's sequences: the columns of `totals` from `slot` on.
COMPILED void draw_arrival(const Arrival& arrival, Int seed, const Table<Int>& totals, Int slot) {
    for (Int i = 0; i < arrival.sequences; i++) {
        draw_levels(arrival.length, 0, arrival.key + i, seed, totals, slot + i);
    }
}

// `total` output tokens, limited to what the engine allows, but at least one more than `seq` has.
COMPILED Int limited(const Engine& engine, const Sequence& seq, Int total) {
    Int most = engine.max_model_len - seq.prompt;
    if (seq.max_tokens > 0) most = min(most, seq.max_tokens);
    return max(seq.output + 1, min(most, total));
}

// Reset `work` to the start with `requests` requests. Marks stay: only one rollout sets them.
COMPILED void reset(const Roll& work, const Scratch& scratch, Int requests) {
    scratch.records[WORK] = scratch.records[START];
    auto& state = work.loop.state;
    auto& due = work.steady.due;
    const Array<Sequence> start = scratch.sequences[START];
    for (Int slot = 0; slot < requests; slot++) {
        state.sequences[slot] = start[slot];
        due[slot] = NEVER;
    }
    for (Int i = 0; i < state.engine.running; i++) state.running[i] = i;
    for (Int which = OLDER; which <= NEWER; which++) {
        auto& batch = work.loop.batches[which];
        const Array<Entry> entries = scratch.entries[2 * START + which];
        for (Int i = 0; i < batch.counts.scheduled; i++) batch.entries[i] = entries[i];
    }
    for (Int i = 0; i < scratch.records[START].inputs; i++) {
        state.inputs[i] = scratch.inputs.at(START, i);
    }
}

}  // namespace foretell::start
