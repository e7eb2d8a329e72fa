// The waiting queue, a list linked through its sequences, and the running list.

#pragma once

#include "state.h"

namespace foretell::queues {

// Whether `slot` is an offline request of an engine that co-schedules.
INLINED bool is_offline(const State& state, Int slot) {
    return state.sequences[slot].priority == OFFLINE_PRIORITY && state.engine.co_schedules;
}

// Insert `slot` behind `before`, or at the head if that is NONE.
COMPILED void link(const State& state, Int slot, Int before) {
    auto& engine = state.engine;
    auto& sequences = state.sequences;
    const Int behind = before == NONE ? engine.head : Int(sequences[before].next);
    auto& seq = sequences[slot];
    seq.previous = before;
    seq.next = behind;
    seq.status = WAITING;
    if (before == NONE) {
        engine.head = slot;
    } else {
        sequences[before].next = slot;
    }
    if (behind == NONE) {
        engine.tail = slot;
    } else {
        sequences[behind].previous = slot;
    }
    engine.waiting += 1;
}

// Add `slot` to the waiting queue: at its end, or in the order of (priority, arrival).
//
// If the engine co-schedules, online requests are before all offline ones.
COMPILED void enqueue(const State& state, Int slot) {
    auto& engine = state.engine;
    auto& seq = state.sequences[slot];
    Int before = engine.tail;
    if (engine.co_schedules && seq.priority != OFFLINE_PRIORITY) {
        engine.online_ttft_s = min(engine.online_ttft_s, seq.ttft_target_s);
        while (before != NONE && is_offline(state, before)) {
            before = state.sequences[before].previous;
        }
    }
    if (engine.by_priority && !is_offline(state, slot)) {
        while (before != NONE) {
            auto& other = state.sequences[before];
            if (other.priority < seq.priority) break;
            if (other.priority == seq.priority && other.arrival_s <= seq.arrival_s) break;
            before = other.previous;
        }
    }
    link(state, slot, before);
}

// Add a preempted `slot` at the head of the queue, or by `enqueue` with priorities or if offline.
COMPILED void enqueue_preempted(const State& state, Int slot) {
    if (state.engine.by_priority || is_offline(state, slot)) {
        enqueue(state, slot);
    } else {
        link(state, slot, NONE);
    }
}

// Remove `slot` from the waiting queue.
COMPILED void unlink(const State& state, Int slot) {
    auto& engine = state.engine;
    auto& sequences = state.sequences;
    const Int before = sequences[slot].previous, behind = sequences[slot].next;
    if (before == NONE) {
        engine.head = behind;
    } else {
        sequences[before].next = behind;
    }
    if (behind == NONE) {
        engine.tail = before;
    } else {
        sequences[behind].previous = before;
    }
    engine.waiting -= 1;
}

// Append `slot` to the running list.
COMPILED void run(const State& state, Int slot) {
    auto& engine = state.engine;
    state.running[engine.running] = slot;
    engine.running += 1;
    state.sequences[slot].status = RUNNING;
}

// Remove the sequence at `position` from the running list.
COMPILED void stop_running(const State& state, Int position) {
    auto& engine = state.engine;
    auto& running = state.running;
    for (Int i = position; i < engine.running - 1; i++) running[i] = running[i + 1];
    engine.running -= 1;
}

// Remove the sequences that have ended from the running list.
COMPILED void drop_ended(const State& state) {
    auto& engine = state.engine;
    Int kept = 0;
    for (Int i = 0; i < engine.running; i++) {
        const Int slot = state.running[i];
        if (state.sequences[slot].status != ENDED) {
            state.running[kept] = slot;
            kept += 1;
        }
    }
    engine.running = kept;
}

}  // namespace foretell::queues
