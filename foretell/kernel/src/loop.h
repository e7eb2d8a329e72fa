// The loop of an engine core: schedule a step, let it run, apply its output.
//
// It is the loop of `EngineCore.step`, or with async scheduling of `step_with_batch_queue`
// (vllm/v1/engine/core.py, 0.32), on a device that runs one step after the other: step k + 1 is
// scheduled when the output of k - 1 is applied, and begins when k ends. `rollout.h` and `live.h`
// call `schedule_next` and `land` and keep the time.

#pragma once

#include "cosched.h"
#include "output.h"

namespace foretell::loop {

using namespace cosched;
using namespace output;

// An engine and its steps in flight: at most `state.engine.depth`, which is 1 or 2.
struct Loop {
    State state;
    Batch batches[2];  // steps in flight alternate between these two
    Clock& clock;
};

// Which of the two batches the step behind those in flight is scheduled into.
INLINED Int newest(const Loop& loop) { return (loop.clock.oldest + loop.clock.in_flight) & 1; }

// Schedule a step behind those in flight; false if none may be, or nothing can change.
//
// A step that only preempts has no tokens. The step is in flight after `launch`. If the engine
// co-schedules, `model` decides how much offline work fits.
INLINED bool schedule_next(const Loop& loop, const StepTime& model) {
    auto& engine = loop.state.engine;
    auto& clock = loop.clock;
    if (clock.in_flight >= engine.depth || engine.running + engine.waiting == 0) return false;
    auto& batch = loop.batches[newest(loop)];
    if (engine.co_schedules) return schedule_beside(loop.state, batch, model, clock.now_s);
    return schedule(loop.state, batch);
}

// The sums of a step.
INLINED Sums sums_of(const Counts& counts) {
    return {counts.prefill_seqs, counts.prefill_tokens, counts.prefill_pairs,
            counts.decode_seqs,  counts.decode_pairs,   counts.draft_tokens};
}

// Seconds of a step with the sums `counts`.
//
// A step without tokens, which only preempted, runs no model and takes no time.
INLINED double batch_s(const StepTime& model, const Counts& counts) {
    if (counts.prefill_seqs + counts.decode_seqs == 0) return 0.0;
    return step_s(model, sums_of(counts));
}

// Put the step just scheduled in flight: it begins when the device is free and takes `seconds`.
INLINED void launch(const Loop& loop, double seconds) {
    auto& clock = loop.clock;
    clock.launched += 1;
    loop.state.engine.step_counter += 1;
    const bool idle = clock.in_flight == 0;
    const double begin_s = idle ? clock.now_s : max(clock.now_s, clock.last_end_s);
    clock.last_end_s = begin_s + seconds;
    if (idle) clock.first_end_s = clock.last_end_s;
    clock.in_flight += 1;
}

// Advance the clock to the end of the oldest step in flight, and take it out of flight.
INLINED void end_oldest(const Loop& loop) {
    auto& clock = loop.clock;
    clock.now_s = max(clock.now_s, clock.first_end_s);
    clock.oldest = 1 - clock.oldest;
    clock.in_flight -= 1;
    clock.first_end_s = clock.last_end_s;
    clock.iterations += 1;
}

// End the oldest step in flight and apply its output.
COMPILED void land(const Loop& loop) {
    auto& batch = loop.batches[loop.clock.oldest];
    end_oldest(loop);
    complete(loop.state, batch, loop.clock.now_s);
}

}  // namespace foretell::loop
