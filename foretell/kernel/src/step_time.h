// Seconds of an engine step, from the sums that describe its batch.
//
// A step takes `max(floor, sum(coefficient * feature) + scale * tables(shape))`. The tables are
// described in `latency.tables`, the arrays at `foretell.kernel.step_time`.

#pragma once

#include "tables.h"

namespace foretell::step_time {

using namespace tables;

// Places in `StepTime.coefficients` behind those of the six features.
constexpr Int FLOOR = 6, TABLES_SCALE = 7, COEFFICIENTS = 8;

// The step-time model of one engine.
struct StepTime {
    Array<double> coefficients;
    Array<double> values;
    Table<Int> layout;
};

// Which of m engines step together, and the steps that each would make alone, counted from the one
// in flight, or without one from the next.
struct Deployments {
    Array<Int> numbers;         // (m,): the same for engines that step together; -1: alone
    Table<double> own_s;        // (m, most steps): seconds of each step
    Array<Int> steps;           // (m,): how many are known; -1: not followed yet in this call
    Array<double> first_end_s;  // (m,): when the step in flight ends; infinite without one
    Array<double> others_s;     // (most steps,): for one engine, by the longest of the others
};

// The step-time models of m engines, which share t sets of tables.
struct StepTimes {
    Table<double> coefficients;
    Array<Int> tables;
    Table<double> values;
    Table<Int> layout;  // (t * `TABLES`, `LAYOUT_WIDTH`)
    Deployments deployments;
};

// The model of one engine.
INLINED StepTime model_at(const StepTimes& models, Int index) {
    const Int tables = models.tables[index];
    const Table<Int> layout = {models.layout[tables * TABLES].data, TABLES, LAYOUT_WIDTH};
    return {models.coefficients[index], models.values[tables], layout};
}

// The sums that describe a batch: the fields of `BatchShape`, in their order.
struct Sums {
    Int prefill_seqs, prefill_tokens, prefill_pairs, decode_seqs, decode_pairs, draft_tokens;
};

INLINED double linear_s(const StepTime& model, const Sums& sums) {
    auto& coefficients = model.coefficients;
    return coefficients[0] + coefficients[1] * double(sums.prefill_tokens + sums.draft_tokens) +
           coefficients[2] * double(sums.prefill_pairs) +
           coefficients[3] * double(sums.prefill_seqs) +
           coefficients[4] * double(sums.decode_seqs) + coefficients[5] * double(sums.decode_pairs);
}

INLINED double decode_attention_s(const StepTime& model, const Sums& sums) {
    if (!sums.decode_seqs) return 0.0;
    const double context = double(sums.decode_pairs) / double(sums.decode_seqs);
    return decode_s(model.values, model.layout, sums.decode_seqs, context);
}

// Seconds of attention by the tables, for equal chunks and equal decodes.
INLINED double attention_s(const StepTime& model, const Sums& sums) {
    if (!sums.prefill_seqs || !sums.prefill_tokens) return decode_attention_s(model, sums);
    const double chunk = double(sums.prefill_tokens) / double(sums.prefill_seqs);
    // The computed tokens before a chunk, from its pairs q*c + q*(q+1)/2.
    const double pairs = double(sums.prefill_pairs) / double(sums.prefill_tokens);
    const double computed = max(0.0, pairs - (chunk + 1.0) / 2.0);
    if (!sums.decode_seqs || !model.layout.at(MIXED, 1)) {
        const double one = grid2_s(model.values, model.layout, PREFILL, chunk, computed);
        return one * double(sums.prefill_seqs) + decode_attention_s(model, sums);
    }
    const double decodes = double(sums.decode_seqs);
    const double context = double(sums.decode_pairs) / double(sums.decode_seqs);
    double both = grid4_s(model.values, model.layout, MIXED, chunk, computed, decodes, context);
    if (sums.prefill_seqs > 1) {
        const double one = grid2_s(model.values, model.layout, PREFILL, chunk, computed);
        both += one * double(sums.prefill_seqs - 1);
    }
    return both;
}

// Seconds of an engine's own work, without shared experts and floor.
INLINED double own_s(const StepTime& model, const Sums& sums) {
    double seconds = linear_s(model, sums);
    if (model.coefficients[TABLES_SCALE] != 0.0) {
        double dense;
        if (sums.prefill_seqs || sums.draft_tokens) {
            const Int tokens = sums.prefill_tokens + sums.decode_seqs + sums.draft_tokens;
            const Int sequences = sums.prefill_seqs + sums.decode_seqs;
            dense = dense_s(model.values, model.layout, tokens, sequences);
        } else {
            dense = dense_decode_s(model.values, model.layout, sums.decode_seqs);
        }
        seconds += model.coefficients[TABLES_SCALE] * (dense + attention_s(model, sums));
    }
    return seconds;
}

// Seconds of the work that data-parallel ranks share, with `tokens` each on average.
INLINED double ranks_s(const StepTime& model, double tokens) {
    const double scale = model.coefficients[TABLES_SCALE];
    if (scale == 0.0 || !model.layout.at(RANKS, 1)) return 0.0;
    const double x = padded(model.values, model.layout, tokens);
    return scale * curve_s(model.values, model.layout, RANKS, x);
}

// Seconds of one step.
//
// Data-parallel ranks that share experts are assumed to run steps of equal shape.
COMPILED double step_s(const StepTime& model, const Sums& sums) {
    const double own = own_s(model, sums);
    const Int tokens = sums.prefill_tokens + sums.decode_seqs + sums.draft_tokens;
    return max(model.coefficients[FLOOR], own + ranks_s(model, double(tokens)));
}

// Seconds of `steps` pure-decode steps of `decode_seqs`, the first with `decode_pairs`.
//
// The sum of `step_s`; exact if none or all of the steps are below the floor. Each step adds one
// pair per sequence, and the time of attention is linear in pairs between two points of its table.
COMPILED double decode_run_s(const StepTime& model, Int decode_seqs, Int decode_pairs, Int steps) {
    const double later = double(steps * (steps - 1)) / 2.0;
    const double growth = model.coefficients[5] * double(decode_seqs) * later;
    const double first_s = linear_s(model, {0, 0, 0, decode_seqs, decode_pairs, 0});
    double total = growth + double(steps) * first_s;
    const double scale = model.coefficients[TABLES_SCALE];
    if (scale != 0.0) {
        const double dense = dense_decode_s(model.values, model.layout, decode_seqs);
        double attention = 0.0;
        if (decode_seqs) {
            const double context = double(decode_pairs) / double(decode_seqs);
            attention =
                tables::decode_run_s(model.values, model.layout, decode_seqs, context, steps);
        }
        total += scale * (double(steps) * dense + attention);
        total += double(steps) * ranks_s(model, double(decode_seqs));
    }
    return max(model.coefficients[FLOOR] * double(steps), total);
}

}  // namespace foretell::step_time
