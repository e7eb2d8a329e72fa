// The state of one engine as arrays, described at `foretell.kernel.layout`.

#pragma once

#include "layout.h"

namespace foretell {

constexpr Int UNUSED = 0, EXPECTED = 1, WAITING = 2, RUNNING = 3, ENDED = 4;
constexpr Int MOST_DRAFTS = 16;
constexpr Int NONE = -1;
constexpr Int OFFLINE_PRIORITY = 2147483647;

// The bits of `foretell.model.SchedulerRule`, by which versions of vLLM differ.
constexpr Int OWN_PREEMPTION_GOES_ON = 1, ADAPTERS_OF_ALL_RUNNING = 2;
constexpr Int UNENCODABLE_IS_PASSED_OVER = 4, WHOLE_INPUT_FROM_ITS_START = 8;
constexpr Int STOPS_AT_INPUT = 16, FREES_INPUTS_WHEN_COMPUTED = 32, COMMITS_CONFIRMED = 64;

// The scheduler of one engine.
struct State {
    Engine& engine;
    Array<Sequence> sequences;
    Array<Int32> running;
    Array<Block> blocks;
    Array<Place> places;
    Array<Int32> first_with;
    Array<Input> inputs;
    Broken& broken;
};

INLINED bool follows(const Engine& engine, Int rule) { return (engine.rules & rule) != 0; }

// One step; `counts` has the numbers of entries in use.
struct Batch {
    Counts& counts;
    Array<Entry> entries;
};

}  // namespace foretell
