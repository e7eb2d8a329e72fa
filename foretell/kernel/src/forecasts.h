// Forecasts from snapshots of many engines, in one call.
//
// Each question asks for the future of the new request on one engine. The arrivals of a call are,
// for each question, the requests on their way to its engine, then the unannounced ones that are
// expected there; the last arrival of all is the new request. The arrays are described at
// `foretell.kernel.forecasts`.

#pragma once

#include "together.h"

namespace foretell::forecasts {

using namespace together;

// The new request's future on each of q engines: instants, infinite for what never happens.
struct Answers {
    Table<double> first_token_s;  // (q, most samples)
    Table<double> last_token_s;   // (q, most samples * marks)
    Array<Mark> marks;
    Table<double> means;
    Table<Int> counts;
};

// The cost of a new request to the others on each of q engines, and memory to compute it.
struct Costs {
    Array<Kept> kept;
    Table<double> without_s;  // (2 * snapshots, most samples * most requests)
    Table<double> beside_s;   // (2, most samples * most requests)
    Array<Mark> marks;
    Array<Int> counts;
    Table<double> added_s;  // (q, 2)
};

// Fill row `i` of `answers.means`.
COMPILED void average(const Answers& answers, Int i, Int samples, double now_s) {
    double first_s = 0.0, last_s = 0.0, tokens = 0.0, preempted_s = 0.0;
    const Int marks = answers.marks.size;
    for (Int sample = 0; sample < samples; sample++) {
        first_s += max(0.0, answers.first_token_s.at(i, sample) - now_s);
        for (Int mark = 0; mark < marks; mark++) {
            last_s += max(0.0, answers.last_token_s.at(i, sample * marks + mark) - now_s);
        }
    }
    for (auto& mark : answers.marks) {
        tokens += double(mark.tokens);
        preempted_s += mark.preempted_s;
    }
    answers.means.at(i, 0) = first_s / double(samples);
    answers.means.at(i, 1) = last_s / double(samples * marks);
    answers.means.at(i, 2) = tokens / double(marks);
    answers.means.at(i, 3) = preempted_s / double(marks);
}

// Fill `answers` for the questions.
COMPILED void forecast(const Call& call, const Answers& answers) {
    auto& new_request = call.arrivals.last();
    forget_steps(call);
    for (Int i = 0; i < call.questions.size; i++) {
        auto& question = call.questions[i];
        const StepTime model = model_at(call.models, question.engine);
        const Together together = among_others(call, question.engine);
        const Int known = call.snapshots.headers[question.engine].figures[REQUESTS];
        const Int expected = sequences_of(call.arrivals, question.first, question.end);
        const Int count = known + expected + new_request.sequences, samples = question.samples;
        const Table<Int> totals = {call.scratch.totals.data, samples, count};
        begin(call, model, question, question.end, true, totals);
        join_others(call, question.engine, together);
        const Futures futures = {totals,
                                 answers.marks,
                                 {answers.first_token_s[i].data, samples, 1},
                                 {answers.last_token_s[i].data, samples, answers.marks.size},
                                 answers.counts[i]};
        sample_futures(call.scratch, model, count - known, new_request.sequences,
                       new_request.length, together, futures);
        if (!is_whole(call.scratch.broken)) return;
        average(answers, i, samples, call.now_s);
    }
}

// Whether rollouts without the new request may differ from the kept ones; if so, note the state.
COMPILED bool is_new(Kept& kept, const Question& question, const Records& start) {
    auto& clock = start.clock;
    const double now_s = clock.in_flight < start.engine.depth ? clock.now_s : 0.0;
    if (kept.version == question.version && kept.samples == question.samples &&
        kept.now_s == now_s && kept.first_end_s == clock.first_end_s &&
        kept.last_end_s == clock.last_end_s) {
        return false;
    }
    kept.version = question.version;
    kept.samples = question.samples;
    kept.now_s = now_s;
    kept.first_end_s = clock.first_end_s;
    kept.last_end_s = clock.last_end_s;
    kept.made += 1;
    return true;
}

// Follow all requests of an engine to their ends, with `new_requests` new ones; returns how many.
//
// Kept rollouts without new requests are reused if they are still valid.
COMPILED Int follow(const Call& call, const Question& question, Int new_requests,
                    const Costs& costs) {
    const Int index = question.engine, samples = question.samples;
    const StepTime model = model_at(call.models, index);
    const Int announced = sequences_of(call.arrivals, question.first, question.announced);
    const Int arriving = announced + new_requests;
    const Int count = call.snapshots.headers[index].figures[REQUESTS] + arriving;
    const Table<Int> totals = {call.scratch.totals.data, samples, count};
    auto& kept = costs.kept[index];
    const Together together = among_others(call, index);
    begin(call, model, question, question.announced, new_requests > 0, totals);
    join_others(call, index, together);
    // `Kept` does not cover the other ranks, so nothing is reused with them.
    if (together.with_others) kept.version = -1;
    if (new_requests == 0 && !is_new(kept, question, call.scratch.records[START])) return count;
    const Table<double>& seconds = new_requests > 0 ? costs.beside_s : costs.without_s;
    const Int row = new_requests > 0 ? 0 : index, rows = seconds.rows / 2;
    const Futures futures = {totals,
                             costs.marks,
                             {seconds[row].data, samples, count},
                             {seconds[rows + row].data, samples, count},
                             costs.counts};
    const double* length = call.arrivals.last().length;
    sample_futures(call.scratch, model, arriving, 0, length, together, futures);
    // Unfinished rollouts are not kept.
    if (new_requests == 0 && !is_whole(call.scratch.broken)) kept.version = -1;
    return count;
}

// Seconds by which `others` come later in `beside_s` than in `without_s`. `spares_offline`: offline
// requests do not count.
//
// Both are flat: `beside_s` is (samples, requests), `without_s` (samples, others). The sum over the
// others is averaged over the samples. Requests that never end even without the new request do not
// count; the delay of those that never end only because of it is infinite.
COMPILED double mean_delay_s(const double* without_s, const double* beside_s, Int samples,
                             const Array<Sequence>& others, Int requests, bool spares_offline) {
    const Int count = others.size;
    double total_s = 0.0;
    for (Int sample = 0; sample < samples; sample++) {
        double delay_s = 0.0;
        for (Int slot = 0; slot < count; slot++) {
            if (spares_offline && others[slot].priority == OFFLINE_PRIORITY) continue;
            const double alone_s = without_s[sample * count + slot];
            if (alone_s < INFINITY) delay_s += beside_s[sample * requests + slot] - alone_s;
        }
        total_s += delay_s;
    }
    return total_s / double(samples);
}

// Fill `costs.added_s` for the questions.
//
// A new request delays others in three ways: it takes tokens of a step's budget, so that prompts
// behind it are computed later; it makes every step longer that it takes part in; and it takes
// blocks and a seat, so that others are admitted later or preempted.
//
// In economics this is an externality: the new request bears its own latency, the others bear the
// rest. The delay of offline requests by an online one does not count, because no client waits for
// them. Otherwise online requests would all be placed on the engine where they already delay
// offline work. Both rollouts use the same lengths for the same requests, so that their difference
// is due to the new request and not to the draw. Only announced arrivals count: later requests are
// not there to be delayed, and can still be placed elsewhere.
COMPILED void cost(const Call& call, const Costs& costs) {
    auto& new_request = call.arrivals.last();
    const Int new_requests = new_request.sequences;
    const Array<Sequence> rows = call.scratch.sequences[START];
    const bool spares_offline = new_request.priority != OFFLINE_PRIORITY;
    const Int engines = costs.without_s.rows / 2;
    forget_steps(call);
    for (Int i = 0; i < call.questions.size; i++) {
        auto& question = call.questions[i];
        const Int others = follow(call, question, 0, costs);
        if (!is_whole(call.scratch.broken)) return;
        follow(call, question, new_requests, costs);
        if (!is_whole(call.scratch.broken)) return;
        for (Int which = 0; which < 2; which++) {
            const double* without_s = costs.without_s[which * engines + question.engine].data;
            costs.added_s.at(i, which) =
                mean_delay_s(without_s, costs.beside_s[which].data, question.samples,
                             rows.first(others), others + new_requests, spares_offline);
        }
    }
}

}  // namespace foretell::forecasts
