// Many engines in one call, each found by the addresses of its arrays.
//
// Passing an array costs a tenth of a microsecond, and an engine has a dozen arrays: that is more
// than a step of it takes. So a row of `Placed` holds the addresses of an engine's arrays, and all
// rows are passed as one array. The writer of a row must keep the arrays alive, and rewrite the row
// when one is replaced.

#pragma once

#include "live.h"

namespace foretell::engines {

using namespace live;

// The m engines of a cluster. The arrays are described at `foretell.kernel.live`.
struct Engines {
    Array<Placed> placed;
    Array<double> ends_s;
    Array<Int> changes;
    Array<double> changed_s;
    Array<Int> outcome;
};

template <class T> INLINED Array<T> array_at(const At& at) { return {(T*)at.address, at.size}; }

// The arrays of one engine.
COMPILED Live live_of(const Engines& engines, Int index) {
    auto& at = engines.placed[index];
    return {array_at<LiveRecord>(at.records), array_at<Sequence>(at.sequences),
            array_at<Int32>(at.running),      array_at<Block>(at.blocks),
            array_at<Place>(at.places),       array_at<Int32>(at.first_with),
            array_at<Input>(at.inputs),       array_at<Entry>(at.older),
            array_at<Entry>(at.newer),        array_at<Belief>(at.beliefs)};
}

// The step-time model with these addresses.
COMPILED StepTime model_of(const PlacedModel& at) {
    return {array_at<double>(at.coefficients), array_at<double>(at.values),
            {(Int*)at.layout.address, TABLES, LAYOUT_WIDTH}};
}

// Apply `live.advance` to one engine: end its oldest step and schedule others.
COMPILED void step(const Engines& engines, Int index, double now_s, Broken& broken) {
    auto& at = engines.placed[index];
    const Live live = live_of(engines, index);
    engines.outcome[0] = index;
    const Limits limits = {at.max_num_scheduled_tokens, at.max_num_seqs};
    live::advance(live, model_of(at.model), now_s, true, 2, limits, &engines.outcome[1], broken);
    engines.changes[index] += 1;
    engines.changed_s[index] = now_s;
    auto& clock = live.records[0].at.clock;
    engines.ends_s[index] = clock.in_flight > 0 ? clock.first_end_s : INFINITY;
}

// End steps in order of time, up to and including `until_s`; true if it stopped at one of them.
//
// It stops at a step that ends a request, or with `each` at any step; `outcome` names the step.
COMPILED bool run(const Engines& engines, double until_s, bool each, Broken& broken) {
    for (;;) {
        Int first = 0;
        double first_s = INFINITY;
        for (Int index = 0; index < engines.ends_s.size; index++) {
            if (engines.ends_s[index] < first_s) {
                first = index;
                first_s = engines.ends_s[index];
            }
        }
        if (first_s > until_s || first_s == INFINITY) return false;
        step(engines, first, first_s, broken);
        if (!is_whole(broken)) return true;
        if (each || engines.outcome[1] > 0) return true;
    }
}

// Apply `live.publish` to each engine in `indices`; its snapshot has the same index.
COMPILED void publish_all(const Engines& engines, const Snapshots& snapshots,
                          const Array<Int>& indices, double now_s) {
    for (const Int index : indices) {
        live::publish(live_of(engines, index), snapshots, index, now_s);
    }
}

}  // namespace foretell::engines
