// Possible futures of an engine's requests: rollouts from one start, each with its own lengths.

#pragma once

#include "start.h"

namespace foretell::futures {

using namespace start;

// The outcome of s rollouts: instants on the start's clock, infinite for what never happens.
struct Futures {
    Table<Int> totals;  // (s, n): the output lengths of the rollouts
    Array<Mark> marks;  // empty if all requests are followed to their ends
    // (s, 1): the first token of any new request; or (s, n), also infinite if it came before; or
    // (s, 0) if not wanted.
    Table<double> first_token_s;
    // (s, marks): the last token of all new requests, if they had as many tokens as the mark; or
    // (s, n).
    Table<double> last_token_s;
    // (1,): steps of the first rollout, up to the end of the new requests if there are any.
    Array<Int> counts;
};

// Set the marks in the first rollout; later ones end at the first token.
COMPILED void follow_new_requests(const Roll& work, const double* length, bool first) {
    auto& state = work.loop.state;
    const Int count = work.marks.size;
    if (first) {
        auto& new_request = state.sequences[work.watched[0]];
        for (Int i = 0; i < count; i++) {
            const double level = (double(i) + 0.5) / double(count);
            const Int tokens = round_even(conditional_quantile(length, 0.0, level));
            work.marks[i].tokens = limited(state.engine, new_request, tokens);
            work.marks[i].at_s = -INFINITY;
            work.marks[i].preempted_s = 0.0;
        }
    } else {
        work.loop.clock.until_first_token = 1;
    }
    for (auto& slot : work.watched) state.sequences[slot].stop_after = work.marks.last().tokens;
}

COMPILED void note_new_requests(const Roll& work, Int sample, bool ended, const Futures& futures) {
    double first_s = INFINITY;
    if (ended) {
        for (auto& slot : work.watched) {
            first_s = min(first_s, work.loop.state.sequences[slot].first_token_s);
        }
    }
    futures.first_token_s.at(sample, 0) = first_s;
    for (Int i = 0; i < work.marks.size; i++) {
        if (sample == 0) {
            futures.last_token_s.at(0, i) = ended ? work.marks[i].at_s : INFINITY;
            continue;
        }
        double last_s = futures.last_token_s.at(0, i);
        if (last_s < INFINITY) last_s += first_s - futures.first_token_s.at(0, 0);
        futures.last_token_s.at(sample, i) = last_s;
    }
}

// Fill all of `futures` except its totals; the start in `scratch` does not change.
//
// `arriving` requests have not joined the queue at the start. The last `watched` sequences are the
// new requests, with the length distribution `length`. Without new requests, every rollout goes on
// until no request is left that can ever run. The number of tokens hardly matters (`steady.h`): the
// cost depends on the requests that are admitted or end.
//
// New requests run up to the last mark. One rollout then shows when they would have ended at any
// mark, since the end of a new request changes little for itself. The marks are the middles of
// equally likely parts of its length. Only the first rollout goes on behind the first token: the
// lengths of others decide when a new request can begin, but matter little for its speed later.
//
// `together` says how the engine steps with other ranks.
COMPILED void sample_futures(const Scratch& scratch, const StepTime& model, Int arriving,
                             Int watched, const double* length, const Together& together,
                             const Futures& futures) {
    auto& records = scratch.records[WORK];
    const Int samples = futures.totals.rows, requests = futures.totals.columns;
    for (Int i = 0; i < watched; i++) scratch.slots.at(WATCHED, i) = requests - watched + i;
    const State state = {records.engine,
                         scratch.sequences[WORK],
                         scratch.slots[RUNNING_SLOTS],
                         scratch.blocks,
                         scratch.places,
                         {scratch.slots.data, 0},
                         scratch.inputs[WORK],
                         scratch.broken};
    const Roll work = {{state,
                        {{records.older, scratch.entries[2 * WORK + OLDER]},
                         {records.newer, scratch.entries[2 * WORK + NEWER]}},
                        records.clock},
                       scratch.slots[ARRIVALS].first(arriving),
                       scratch.slots[WATCHED].first(watched),
                       futures.marks,
                       {records.sums, scratch.slots[DUE], scratch.residues[0], scratch.residues[1]},
                       together};
    auto& clock = records.clock;
    for (Int sample = 0; sample < samples; sample++) {
        reset(work, scratch, requests);
        for (Int slot = 0; slot < requests; slot++) {
            auto& seq = state.sequences[slot];
            seq.stop_after = limited(state.engine, seq, futures.totals.at(sample, slot));
        }
        if (watched > 0) follow_new_requests(work, length, sample == 0);
        const bool ended = roll(work, model, INFINITY);
        if (!is_whole(scratch.broken)) return;
        if (sample == 0) {
            futures.counts[0] = clock.iterations;
        }
        if (watched > 0) {
            note_new_requests(work, sample, ended, futures);
        } else if (futures.first_token_s.columns > 0) {
            for (Int slot = 0; slot < requests; slot++) {
                auto& seq = state.sequences[slot];
                futures.first_token_s.at(sample, slot) = seq.first_token_s;
                futures.last_token_s.at(sample, slot) = seq.finished_s;
            }
        }
    }
}

}  // namespace foretell::futures
