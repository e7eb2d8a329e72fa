// Data-parallel ranks that step together, as with a model with experts: every step takes as long as
// that of the slowest rank.
//
// Which tokens a rank computes in which step does not depend on the times of steps, except for
// requests that arrive meanwhile. So each rank is followed alone, with median lengths, and the
// others then wait for its steps.

#pragma once

#include "futures.h"

namespace foretell::together {

using namespace futures;

// Seconds without news after which a rank does not count: `snapshot_cache.STALE_S`.
constexpr double STALE_S = 2.5;

// The arguments of a call, shared by all its questions.
struct Call {
    Snapshots snapshots;
    Scratch scratch;
    StepTimes models;
    Array<Question> questions;
    Array<Arrival> arrivals;
    double now_s;
    Int seed;
};

COMPILED Int sequences_of(const Array<Arrival>& arrivals, Int first, Int end) {
    Int count = 0;
    for (Int i = first; i < end; i++) count += arrivals[i].sequences;
    return count;
}

// Write the engine and the arrivals up to `end` to `scratch`, and draw all lengths.
COMPILED void begin(const Call& call, const StepTime& model, const Question& question, Int end,
                    bool with_new_request, const Table<Int>& totals) {
    auto& scratch = call.scratch;
    auto& arrivals = call.arrivals;
    const Int index = question.engine;
    restore(call.snapshots, index, scratch);
    set_clock(call.snapshots, index, model, scratch);
    draw_requests(call.snapshots, index, call.seed, totals);
    const Int first = call.snapshots.headers[index].figures[REQUESTS];
    Int slot = first;
    for (Int j = question.first; j < end; j++) {
        auto& arrival = arrivals[j];
        const double delay_s = j < question.announced ? question.delay_s : 0.0;
        expect(scratch, arrival, delay_s, arrival.cached_tokens, slot);
        draw_arrival(arrival, call.seed, totals, slot);
        slot += arrival.sequences;
    }
    if (with_new_request) {
        auto& new_request = arrivals.last();
        expect(scratch, new_request, question.delay_s, question.cached_tokens, slot);
        draw_arrival(new_request, call.seed, totals, slot);
        slot += new_request.sequences;
    }
    sort_arrivals(scratch, first, slot);
}

// Forget the steps that ranks would make alone.
COMPILED void forget_steps(const Call& call) {
    for (auto& steps : call.models.deployments.steps) steps = -1;
}

// Whether engine `other` steps together with engine `index`.
INLINED bool steps_with(const Call& call, Int index, Int other) {
    auto& numbers = call.models.deployments.numbers;
    const bool is_silent = call.snapshots.headers[other].known_s + STALE_S < call.now_s;
    return other != index && numbers[other] == numbers[index] && !is_silent;
}

// The question about an engine in this call; if there is none, one without arrivals.
COMPILED Question question_of(const Call& call, Int index) {
    for (auto& question : call.questions) {
        if (question.engine == index) return question;
    }
    return {index, 1, 0, 0, 0, 0, 0, 0.0};
}

// Follow engine `index` alone, without a new request, and note its steps.
COMPILED void follow_alone(const Call& call, Int index) {
    auto& deployments = call.models.deployments;
    const Question question = question_of(call, index);
    const StepTime model = model_at(call.models, index);
    const Int arriving = sequences_of(call.arrivals, question.first, question.announced);
    const Int count = call.snapshots.headers[index].figures[REQUESTS] + arriving;
    const Table<Int> totals = {call.scratch.totals.data, 1, count};
    begin(call, model, question, question.announced, false, totals);
    auto& clock = call.scratch.records[START].clock;
    const Array<double> own_s = deployments.own_s[index];
    deployments.first_end_s[index] = clock.in_flight > 0 ? clock.first_end_s : INFINITY;
    own_s[0] = 0.0;
    if (clock.in_flight > 1) own_s[1] = clock.last_end_s - clock.first_end_s;
    Int counts[1];
    // No request is watched or noted.
    const Futures futures = {totals, {nullptr, 0}, {nullptr, 1, 0}, {nullptr, 1, 0}, {counts, 1}};
    sample_futures(call.scratch, model, arriving, 0, nullptr, {true, {nullptr, 0}, own_s}, futures);
    const Int launched = call.scratch.records[WORK].clock.launched;
    deployments.steps[index] = min(launched, own_s.size);
}

// How engine `index` steps with the others of its deployment.
COMPILED Together among_others(const Call& call, Int index) {
    auto& deployments = call.models.deployments;
    const Int engines = deployments.numbers.size;
    const Array<double> others_s = deployments.others_s;
    if (deployments.numbers[index] < 0) return {false, {nullptr, 0}, {nullptr, 0}};
    bool begun = false;
    for (Int other = 0; other < engines; other++) {
        if (other != index && !steps_with(call, index, other)) continue;
        if (deployments.steps[other] < 0) follow_alone(call, other);
        if (!is_whole(call.scratch.broken)) return {true, {nullptr, 0}, {nullptr, 0}};
        begun |= deployments.first_end_s[other] < INFINITY;
    }
    Int steps = 0;
    for (Int other = 0; other < engines; other++) {
        if (!steps_with(call, index, other)) continue;
        // A rank without a step in flight takes part in those of others with a dummy.
        const Int ahead = begun && deployments.first_end_s[other] == INFINITY;
        const Array<double> own_s = deployments.own_s[other];
        const Int end = min(deployments.steps[other] + ahead, others_s.size);
        while (steps < end) others_s[steps++] = 0.0;
        for (Int step = ahead; step < end; step++) {
            others_s[step] = max(others_s[step], own_s[step - ahead]);
        }
    }
    return {true, others_s.first(steps), {nullptr, 0}};
}

// Let the steps in flight of engine `index`, written to `START`, end with those of the others.
COMPILED void join_others(const Call& call, Int index, const Together& together) {
    if (!together.with_others) return;
    auto& deployments = call.models.deployments;
    auto& clock = call.scratch.records[START].clock;
    double end_s = -INFINITY;
    for (Int other = 0; other < deployments.numbers.size; other++) {
        const double first_end_s = deployments.first_end_s[other];
        if (steps_with(call, index, other) && first_end_s < INFINITY) {
            end_s = max(end_s, first_end_s);
        }
    }
    if (end_s == -INFINITY) return;
    if (clock.in_flight == 0) {
        clock.now_s = max(clock.now_s, end_s);
        clock.launched = 1;
        return;
    }
    const double next_s = clock.last_end_s - clock.first_end_s;
    clock.first_end_s = clock.last_end_s = max(clock.first_end_s, end_s);
    if (clock.in_flight > 1) {
        const bool is_known = together.others_s.size > 1;
        clock.last_end_s += max(next_s, is_known ? together.others_s[1] : 0.0);
    }
}

}  // namespace foretell::together
