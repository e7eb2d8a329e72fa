// An engine run forward in time: its loop, the times of its steps, and arrivals.

#pragma once

#include "loop.h"
#include "steady.h"

namespace foretell::rollout {

using namespace loop;
using namespace steady;

// The step that vLLM runs on a data-parallel rank with nothing to do: one token.
constexpr Sums DUMMY = {0, 0, 0, 1, 1, 0};

// Rounds after which a rollout gives up: a safety bound that no real engine reaches.
constexpr Int MAX_ROUNDS = 200000;

// How an engine steps with the other data-parallel ranks of its deployment: every step of one is a
// step of all, takes as long as the longest, and is a dummy for a rank that has nothing to compute
// (`DPEngineCoreProc` of vllm/v1/engine/core.py). Steps are counted from the start.
struct Together {
    bool with_others;        // there are such ranks, or there may be
    Array<double> others_s;  // seconds of each step by the longest of the others
    Array<double> own_s;     // filled with seconds of its own steps, as far as there is room
};

// Everything a rollout works on.
struct Roll {
    Loop loop;
    Array<Int32> arrivals;  // slots that have yet to arrive, by `arrival_s`
    // The rollout ends when all of these slots have ended; but see `until_first_token`.
    Array<Int32> watched;
    Array<Mark> marks;  // ascending
    Steady steady;
    Together together;
};

// Seconds of step number `step`, which would take `own_s` on this engine alone.
INLINED double together_s(const Roll& r, Int step, double own_s) {
    auto& together = r.together;
    if (step < together.own_s.size) together.own_s[step] = own_s;
    return step < together.others_s.size ? max(own_s, together.others_s[step]) : own_s;
}

// Seconds of the next step, with this batch.
INLINED double next_s(const Roll& r, const StepTime& model, const Counts& counts) {
    double own_s = batch_s(model, counts);
    if (!r.together.with_others) return own_s;
    if (own_s == 0.0) own_s = step_s(model, DUMMY);
    return together_s(r, r.loop.clock.launched, own_s);
}

// Take part in a step of the other ranks with a dummy.
INLINED void idle_along(const Roll& r, const StepTime& model) {
    auto& clock = r.loop.clock;
    clock.now_s += together_s(r, clock.launched, step_s(model, DUMMY));
    clock.last_end_s = clock.first_end_s = clock.now_s;
    clock.launched += 1;
    r.loop.state.engine.step_counter += 1;
}

INLINED bool enter(const Roll& r) {
    auto& clock = r.loop.clock;
    auto& state = r.loop.state;
    if (clock.in_flight != state.engine.depth - 1 || has_offline(state)) return false;
    // At every step, waiting requests may be deferred or not.
    if (state.engine.prefill_schedule_interval > 1 && state.engine.waiting > 0) return false;
    // A request with multimodal inputs to compute may have to stop before one.
    if (state.engine.encoding > 0) return false;
    return steady::enter(state, r.steady, r.loop.batches[clock.oldest]);
}

COMPILED void leave(const Roll& r) {
    if (!r.steady.sums.active) return;
    steady::leave(r.loop.state, r.steady, r.loop.batches[r.loop.clock.oldest]);
}

INLINED bool seen_enough(const Roll& r) {
    auto& clock = r.loop.clock;
    for (auto& slot : r.watched) {
        auto& seq = r.loop.state.sequences[slot];
        if (clock.until_first_token && seq.first_token_s < INFINITY) return true;
        if (!clock.until_first_token && seq.status != ENDED) return false;
    }
    return r.watched.size > 0 && !clock.until_first_token;
}

INLINED void admit_arrivals(const Roll& r) {
    auto& clock = r.loop.clock;
    auto& sequences = r.loop.state.sequences;
    while (clock.next_arrival < r.arrivals.size) {
        const Int slot = r.arrivals[clock.next_arrival];
        if (sequences[slot].arrival_s > clock.now_s) return;
        clock.next_arrival += 1;
        if (sequences[slot].status == EXPECTED) {
            if (is_offline(r.loop.state, slot)) leave(r);
            enqueue(r.loop.state, slot);
        }
    }
}

INLINED double next_arrival_s(const Roll& r) {
    auto& clock = r.loop.clock;
    if (clock.next_arrival >= r.arrivals.size) return INFINITY;
    return r.loop.state.sequences[r.arrivals[clock.next_arrival]].arrival_s;
}

// Seconds of the next `steps` steps of `count` decodes, with `pairs` in the first step.
INLINED double run_s(const Roll& r, const StepTime& model, Int count, Int pairs, Int steps) {
    if (steps <= 0) return 0.0;
    if (!r.together.with_others) return step_time::decode_run_s(model, count, pairs, steps);
    double total_s = 0.0;
    for (Int i = 0; i < steps; i++) {
        const double own_s = step_s(model, {0, 0, 0, count, pairs + i * count, 0});
        total_s += together_s(r, r.loop.clock.launched + i, own_s);
    }
    return total_s;
}

// The least number of steps, up to `most`, that take `seconds`; 0 if `seconds` is not positive.
//
// A run's time is nearly proportional to its steps, so each guess is close.
COMPILED Int steps_until(const Roll& r, const StepTime& model, Int count, Int pairs, double seconds,
                         Int most) {
    if (seconds <= 0.0 || most <= 0) return 0;
    if (r.together.with_others) {
        Int steps = 0;
        while (steps < most && seconds > 0.0) {
            const double own_s = step_s(model, {0, 0, 0, count, pairs + steps * count, 0});
            seconds -= together_s(r, r.loop.clock.launched + steps, own_s);
            steps += 1;
        }
        return steps;
    }
    Int low = 0, high = most;  // too few; enough, or `most`
    Int guess = Int(seconds / step_s(model, {0, 0, 0, count, pairs, 0}));
    while (high - low > 1) {
        guess = max(low + 1, min(guess, high - 1));
        const double took = step_time::decode_run_s(model, count, pairs, guess);
        if (took >= seconds) {
            high = guess;
        } else {
            low = guess;
        }
        const Int next_guess = Int(double(guess) * seconds / took);
        guess = next_guess == guess ? next_guess + (took < seconds) : next_guess;
    }
    return high;
}

// Whether a watched request that has begun gets no token, since it is preempted or recomputed.
INLINED bool stalls(const Roll& r, Int slot, Int output) {
    auto& seq = r.loop.state.sequences[slot];
    return seq.noted > 0 && output <= seq.noted && seq.status != ENDED;
}

// Note that output was noted; `stalled`: a watched request has stalled since the last time.
INLINED void pass(const Roll& r, bool stalled) {
    auto& clock = r.loop.clock;
    if (stalled) clock.preempted_s += clock.now_s - clock.noted_s;
    clock.noted_s = clock.now_s;
}

// Note the marks that watched requests have passed by now.
INLINED void note(const Roll& r) {
    auto& clock = r.loop.clock;
    bool stalled = false;
    for (auto& slot : r.watched) {
        auto& seq = r.loop.state.sequences[slot];
        const Int output = output_of(r.loop.state, r.steady, slot);
        stalled |= stalls(r, slot, output);
        if (output <= seq.noted) continue;
        for (auto& mark : r.marks) {
            if (seq.noted < mark.tokens && mark.tokens <= output) {
                mark.at_s = max(mark.at_s, clock.now_s);
                mark.preempted_s = clock.preempted_s;
            }
        }
        seq.noted = output;
    }
    pass(r, stalled);
}

// Note the marks that watched requests will pass in the next run of steps, and when.
//
// Returns whether one of these requests stalls meanwhile.
INLINED bool note_run(const Roll& r, const StepTime& model, double begin_s, Int steps) {
    const Int ahead = r.loop.state.engine.depth - 1;
    auto& sums = r.steady.sums;
    bool stalled = false;
    for (auto& slot : r.watched) {
        auto& seq = r.loop.state.sequences[slot];
        const Int output = output_of(r.loop.state, r.steady, slot);
        if (r.steady.due[slot] == NEVER) {
            stalled |= stalls(r, slot, output);
            continue;
        }
        for (auto& mark : r.marks) {
            if (output < mark.tokens && mark.tokens <= output + steps) {
                const Int taken = mark.tokens - output - ahead;
                const double after_s = run_s(r, model, sums.scheduled, sums.pairs, taken);
                mark.at_s = max(mark.at_s, begin_s + after_s);
                mark.preempted_s = r.loop.clock.preempted_s;
            }
        }
        seq.noted = output + steps;
    }
    return stalled;
}

// Run one iteration of the engine's loop; false if nothing can ever run again.
COMPILED bool iterate(const Roll& r, const StepTime& model) {
    auto& loop = r.loop;
    auto& clock = loop.clock;
    const bool is_full = clock.in_flight == loop.state.engine.depth;
    const bool has_next = schedule_next(loop, model);
    if (has_next) {
        auto& counts = loop.batches[newest(loop)].counts;
        launch(loop, next_s(r, model, counts));
        if (clock.in_flight < loop.state.engine.depth && counts.scheduled > 0) return true;
    }
    if (clock.in_flight > 0) {
        land(loop);
        note(r);
        if (r.together.with_others && !has_next && !is_full) idle_along(r, model);
        return true;
    }
    if (clock.next_arrival >= r.arrivals.size) return false;
    while (clock.now_s < next_arrival_s(r) && clock.launched < r.together.others_s.size) {
        idle_along(r, model);
    }
    clock.now_s = max(clock.now_s, next_arrival_s(r));
    return true;
}

// Whether a waiting request may be admitted beside those that decode, before the next event.
//
// Later steps of the same kind find fewer free blocks: a request that does not fit now will not fit
// then, unless windows leave blocks behind. Blocks that chunks leave behind are an event.
INLINED bool may_admit(const State& state, const Steady& steady) {
    auto& engine = state.engine;
    const Int token_budget = engine.max_num_scheduled_tokens - steady.sums.scheduled;
    if (engine.head == NONE || token_budget <= 0 || engine.running >= engine.max_num_seqs) {
        return false;
    }
    if (steady.sums.sliding > 0 || steady.sums.given_up > 0) return true;
    auto& head = state.sequences[engine.head];
    if (head.inputs > 0) return true;  // trying to admit it changes the encoder cache
    const Int most = floor_div(head.prompt + head.output - 1, engine.block_size);
    const Int hits = min(head.hits, most), threshold = long_prefill_threshold(state);
    return admissible_tokens(state, engine.head, token_budget, threshold, hits, NO_PADDING) > 0;
}

// Whether an arriving request may be admitted; otherwise it only joins a queue that does not move.
INLINED bool arrivals_matter(const State& state) {
    auto& engine = state.engine;
    if (engine.prefill_schedule_interval > 1) return true;  // arrivals affect deferral
    const bool stands_still = engine.head != NONE && !engine.by_priority;
    return !stands_still && engine.running < engine.max_num_seqs;
}

// Run all iterations up to the next event at once; false if there are not enough blocks for one.
INLINED bool fast_forward(const Roll& r, const StepTime& model, double until_s) {
    auto& state = r.loop.state;
    auto& clock = r.loop.clock;
    auto& steady = r.steady;
    auto& sums = steady.sums;
    const Int ahead = state.engine.depth - 1;
    if (sums.scheduled > state.engine.max_num_scheduled_tokens) return false;
    Int steps = iterations_that_fit(state, steady, sums.next_event - sums.iteration);
    if (steps == 0) return false;
    const Int count = sums.scheduled, pairs = sums.pairs;
    // The run's first step begins here, and its output is applied `ahead` iterations later.
    const double begin_s = ahead > 0 ? clock.last_end_s : clock.now_s;
    const double stop_s = arrivals_matter(state) ? min(until_s, next_arrival_s(r)) : until_s;
    if (stop_s < INFINITY) {
        steps = ahead + steps_until(r, model, count, pairs, stop_s - begin_s, steps - ahead);
    }
    if (ahead > 0) {
        auto& in_flight = r.loop.batches[clock.oldest];
        deliver(state, steady, in_flight, begin_s);
        in_flight.counts.scheduled = 0;  // the next steps have only steady requests
    }
    const bool stalled = note_run(r, model, begin_s, steps);
    state.engine.prefill_capacity_bound &= state.engine.waiting > 0;
    take_steady_blocks(state, steady, steps);
    clock.now_s = clock.last_end_s = begin_s + run_s(r, model, count, pairs, steps - ahead);
    if (ahead > 0) {
        const double own_s = step_s(model, {0, 0, 0, count, pairs + (steps - 1) * count, 0});
        clock.last_end_s += together_s(r, clock.launched + steps - 1, own_s);
    }
    clock.launched += steps;
    state.engine.step_counter += steps;
    clock.first_end_s = clock.last_end_s;
    clock.iterations += steps;
    pass(r, stalled);
    advance_steady(state, steady, steps, clock.now_s);
    return true;
}

// Run one or many iterations with the steady requests in bulk; false if that is impossible.
INLINED bool iterate_steady(const Roll& r, const StepTime& model, double until_s) {
    auto& state = r.loop.state;
    auto& clock = r.loop.clock;
    auto& steady = r.steady;
    const bool only_steady =
        steady.sums.scheduled > 0 && steady.sums.members == state.engine.running;
    const bool may_defer = state.engine.prefill_schedule_interval > 1;
    if (may_defer && (state.engine.waiting > 0 || !only_steady)) return false;
    if (only_steady && !may_admit(state, steady)) return fast_forward(r, model, until_s);
    if (!can_schedule(state, steady, long_prefill_threshold(state))) return false;
    auto& step = r.loop.batches[newest(r.loop)];
    const bool scheduled = schedule_rest(state, steady, step);
    if (scheduled) launch(r.loop, next_s(r, model, step.counts));
    if (clock.in_flight == 0) return false;
    auto& batch = r.loop.batches[clock.oldest];
    end_oldest(r.loop);
    deliver(state, steady, batch, clock.now_s);
    advance_steady(state, steady, 1, clock.now_s);
    const bool in_order = !scheduled || join_sampled(state, steady, step);
    note(r);
    if (r.together.with_others && !scheduled) idle_along(r, model);
    if (!in_order || clock.in_flight != state.engine.depth - 1 || state.engine.encoding > 0) {
        leave(r);
    }
    return true;
}

// Run until all watched requests have ended or the clock has reached `until_s`.
//
// False if neither happens, because the rest can never run, or if an invariant is broken.
COMPILED bool roll(const Roll& r, const StepTime& model, double until_s) {
    auto& clock = r.loop.clock;
    auto& sums = r.steady.sums;
    bool arrives = false;
    const Int most = r.together.own_s.size;
    for (Int round = 0; round < MAX_ROUNDS; round++) {
        if (most > 0 && clock.launched >= most) break;
        if (!is_whole(r.loop.state.broken)) return false;
        admit_arrivals(r);
        arrives = clock.now_s >= until_s || seen_enough(r);
        if (arrives) break;
        if ((sums.active || enter(r)) && iterate_steady(r, model, until_s)) continue;
        leave(r);
        if (!iterate(r, model)) break;
    }
    leave(r);
    return arrives;
}

}  // namespace foretell::rollout
