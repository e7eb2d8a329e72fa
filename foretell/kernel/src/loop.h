// The loop of an engine core: schedule a step, let it run, apply its output.
//
// It is the loop of `EngineCore.step`, or with async scheduling of `step_with_batch_queue`
// (vllm/v1/engine/core.py, 0.32), on a device that runs one step after the other: step k + 1 is
// scheduled when the output of k - 1 is applied, and begins when k ends. The driver of an engine
// calls `schedule_next` and `land` and keeps the time: forecasts and the simulator here,
// `engine.twin` for the replay of scenarios and for the emulated engine.

#pragma once

#include "cosched.h"
#include "output.h"

namespace foretell::loop {

using namespace cosched;
using namespace output;

// An engine and its steps in flight: at most `state.engine.depth`, which is 1 or 2.
struct Loop {
    State state;
    Batch batches[2];  // the steps in flight take turns in these two
    Clock& clock;
};

// Which of the two batches the step behind those in flight is scheduled into.
INLINED Int newest(const Loop& loop) { return (loop.clock.oldest + loop.clock.in_flight) & 1; }

// Schedule a step behind those in flight; false where none may be, or nothing can change.
//
// A step that only preempts holds no tokens. The step is in flight when `launch` says so. Where
// offline requests are planned apart they get what `model` says is left of it.
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
// A step without tokens, which preempted somebody, runs no model and takes no time.
INLINED double batch_s(const StepTime& model, const Counts& counts) {
    if (counts.prefill_seqs + counts.decode_seqs == 0) return 0.0;
    return step_s(model, sums_of(counts));
}

// The step just scheduled is in flight: it begins when the device is free, for `seconds`.
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

// The clock moves to the end of the oldest step in flight, which is in flight no more.
INLINED void end_oldest(const Loop& loop) {
    auto& clock = loop.clock;
    clock.now_s = max(clock.now_s, clock.first_end_s);
    clock.oldest = 1 - clock.oldest;
    clock.in_flight -= 1;
    clock.first_end_s = clock.last_end_s;
    clock.iterations += 1;
}

// The oldest step in flight ends, and its output is applied.
COMPILED void land(const Loop& loop) {
    auto& batch = loop.batches[loop.clock.oldest];
    end_oldest(loop);
    complete(loop.state, batch, loop.clock.now_s);
}

}  // namespace foretell::loop
