// How long a step may take beside online requests, and how much offline work fits into it.

#pragma once

#include "offline.h"
#include "state.h"
#include "step_time.h"

namespace foretell::cosched_plan {

using namespace offline;
using namespace step_time;

// The tokens that a running request could compute.
INLINED Int left_of(const State& state, Int slot) {
    auto& seq = state.sequences[slot];
    return seq.prompt + seq.output + seq.placeholders - seq.computed;
}

// Whether all known tokens of a running request are computed, as vLLM sees it.
INLINED bool decodes_now(const State& state, Int slot) {
    return state.sequences[slot].is_prefill_chunk == 0;
}

INLINED double due_s(double target_s) { return target_s > 0.0 ? target_s : INFINITY; }

// The TTFT from which a request's later tokens are due: the actual one, or before that the target.
INLINED double ttft_due_s(const Sequence& seq) {
    if (seq.first_token_s < INFINITY) return seq.first_token_s - seq.arrival_s;
    return due_s(seq.ttft_target_s);
}

INLINED Int pairs_of(Int tokens, Int computed) {
    return tokens * computed + floor_half(tokens * (tokens + 1));
}

// `shape` with `count` more decodes: those of `running` from `first` on.
COMPILED Sums with_decodes(const Array<Sequence>& sequences, const Array<Int32>& running,
                           Sums shape, Int first, Int count) {
    for (Int i = first; i < first + count; i++) {
        shape.decode_pairs += sequences[running[i]].computed + 1;
    }
    shape.decode_seqs += count;
    return shape;
}

// `shape` with one more prefill chunk, behind `computed` tokens.
INLINED Sums with_prefill(Sums shape, Int tokens, Int computed) {
    shape.prefill_seqs += 1;
    shape.prefill_tokens += tokens;
    shape.prefill_pairs += pairs_of(tokens, computed);
    return shape;
}

// The longest time that the step may take, by the slack of online requests.
COMPILED double longest_s(const State& state, const StepTime& model, Int online, Int arriving,
                          const Sums& shape, double now_s) {
    auto& engine = state.engine;
    double least_s = INFINITY;
    bool as_alone = false;
    Int slot = engine.head;
    for (Int i = 0; i < online + arriving; i++) {
        const Int place = i < online ? Int(state.running[i]) : slot;
        auto& seq = state.sequences[place];
        if (i >= online) slot = seq.next;
        if (seq.ttft_target_s == 0.0 && seq.tpot_target_s == 0.0) {
            as_alone = true;
        } else {
            const double ttft_s = ttft_due_s(seq), tpot_s = due_s(seq.tpot_target_s);
            const double waited_s = now_s - seq.arrival_s;
            least_s = min(least_s, slack_s(ttft_s, tpot_s, waited_s, seq.output));
        }
    }
    const bool anybody = shape.prefill_tokens + shape.decode_seqs > 0;
    const double alone_s = anybody ? step_s(model, shape) : 0.0;
    double comes_s = INFINITY;
    if (engine.online_ttft_s < INFINITY) {
        comes_s = arrival_s(step_s(model, {0, 0, 0, 1, 1, 0}), engine.online_ttft_s);
    }
    return limit_s(alone_s, least_s, as_alone, comes_s);
}

// The offline work of a step: the number of decodes, and tokens of prompts.
struct Fitting {
    Int decodes, tokens;
};

// The offline work that fits into a step of at most `budget` tokens and `most_s` seconds.
//
// Decodes come first, as they hold memory. Without online work, something is computed in any case.
// `running` are places in `sequences`; the `resident` offline requests that decode begin at `first`
// in it. The next offline prompt has `computed` tokens, and `wanted` more are wanted.
COMPILED Fitting fit(const Array<Sequence>& sequences, const Array<Int32>& running,
                     const StepTime& model, const Sums& online, Int first, Int resident,
                     Int computed, Int wanted, Int budget, double most_s) {
    const Int used = online.prefill_tokens + online.decode_seqs, left = budget - used;
    const bool idle = used == 0, is_limited = most_s < INFINITY;
    Int most = min(resident, max(Int(0), left)), count = most;
    if (is_limited) {
        count = 0;
        while (count < most) {
            const Int middle = floor_half(count + most);
            if (most_s < step_s(model, with_decodes(sequences, running, online, first, middle + 1))) {
                most = middle;
            } else {
                count = middle + 1;
            }
        }
        if (idle) count = max(count, min(Int(1), resident));
    }
    const Sums shape = with_decodes(sequences, running, online, first, count);
    most = max(Int(0), min(wanted, left - count));
    Int tokens = most;
    if (most > 0 && is_limited) {
        tokens = 0;
        while (tokens < most) {
            const Int middle = floor_half(tokens + most);
            if (most_s < step_s(model, with_prefill(shape, middle + 1, computed))) {
                most = middle;
            } else {
                tokens = middle + 1;
            }
        }
        if (idle && count == 0) tokens = max(tokens, Int(1));
    }
    return {count, tokens};
}

}  // namespace foretell::cosched_plan
