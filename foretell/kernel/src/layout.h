// The rows of the kernel's arrays: the same as the dtypes of `foretell.kernel`, where each field is
// explained. `foretell.kernel.layout.same` compares them when they are loaded.

#pragma once

#include "base.h"

namespace foretell {

// Field by field: type, name, dimensions.
#define FORETELL_DECLARE(type, name, dimensions) type name dimensions;
#define FORETELL_DESCRIBE(type, name, dimensions) \
    {#name, offsetof(Row, name), sizeof(Row::name), kind_of((type*)nullptr)},
#define FORETELL_STRUCT(Name, fields) \
    struct Name { \
        fields(FORETELL_DECLARE) \
    }; \
    template <> struct Described<Name> { \
        using Row = Name; \
        static constexpr const char* name = #Name; \
        static constexpr Field rows[] = {fields(FORETELL_DESCRIBE)}; \
    };

struct Field {
    const char* name;
    size_t offset, size;
    char kind;  // as numpy's: f, i, or V for a structure
};

template <class T> constexpr char kind_of(T*) { return 'V'; }
template <> constexpr char kind_of(double*) { return 'f'; }
template <> constexpr char kind_of(Int32*) { return 'i'; }
template <> constexpr char kind_of(Int*) { return 'i'; }

template <class T> struct Described;

#define SEQUENCE_FIELDS(F) \
    F(double, arrival_s, ) F(double, first_token_s, ) F(double, finished_s, ) F(double, ttft_target_s, ) \
    F(double, tpot_target_s, ) F(Int32, status, ) F(Int32, priority, ) F(Int32, prompt, ) \
    F(Int32, output, ) F(Int32, stop_after, ) F(Int32, max_tokens, ) F(Int32, computed, ) \
    F(Int32, blocks, ) F(Int32, left, ) F(Int32, hits, ) F(Int32, cached, ) F(Int32, preemptions, ) \
    F(Int32, placeholders, ) F(Int32, in_flight, ) F(Int32, stale, ) F(Int32, is_prefill_chunk, ) \
    F(Int32, next, ) F(Int32, previous, ) F(Int32, place, ) F(Int32, committed, ) F(Int32, drafts, ) \
    F(Int32, adapter, ) F(Int32, blocked, ) F(Int32, noted, ) F(Int32, inputs, ) F(Int32, first_input, ) \
    F(Int32, encoding, ) F(Int32, encoded, ) F(Int32, entered, ) F(Int32, last, ) F(Int32, end, )
FORETELL_STRUCT(Sequence, SEQUENCE_FIELDS)

#define ENGINE_FIELDS(F) \
    F(Int, block_size, ) F(Int, max_num_scheduled_tokens, ) F(Int, max_num_seqs, ) \
    F(Int, max_model_len, ) F(Int, max_num_batched_tokens, ) F(Int, long_prefill_token_threshold, ) \
    F(Int, long_prefill_token_threshold_adaptive, ) F(Int, long_prefill_threshold_when_alone, ) \
    F(Int, by_priority, ) F(Int, enable_chunked_prefill, ) F(Int, watermark_blocks, ) F(Int, groups, ) \
    F(Int, local_groups, ) F(Int, window, ) F(Int, chunk, ) F(Int, most_local_blocks, ) \
    F(Int, reserve_full_isl, ) F(Int, knows_content, ) F(Int, depth, ) F(Int, drafts, ) \
    F(Int, lookahead, ) F(Int, drops_hit, ) F(Int, max_loras, ) F(Int, max_num_encoder_input_tokens, ) \
    F(Int, encoder_cache_size, ) F(Int, disable_chunked_mm_input, ) F(Int, num_prefill_lookahead, ) \
    F(Int, hash_lookahead, ) F(Int, prefill_schedule_interval, ) F(Int, rules, ) \
    F(double, drafted_ratio,[16]) F(double, accepted_ratio,[16]) F(Int, co_schedules, ) \
    F(double, online_ttft_s, ) F(double, usual_online_blocks, ) \
    F(Int, step_counter, ) F(Int, prefill_capacity_bound, ) F(Int, running, ) F(Int, waiting, ) \
    F(Int, head, ) F(Int, tail, ) F(Int, free, ) F(Int, held, ) F(Int, owned, ) F(Int, unhashed, ) \
    F(Int, blank_head, ) F(Int, lru_head, ) F(Int, lru_tail, ) F(Int, encoding, ) F(Int, encoder_budget, ) \
    F(Int, encoder_free, ) F(Int, encoder_freeable, ) F(Int, encoder_head, ) F(Int, encoder_tail, )
FORETELL_STRUCT(Engine, ENGINE_FIELDS)

#define BLOCK_FIELDS(F) \
    F(Int32, refs, ) F(Int32, content, ) F(Int32, next, ) F(Int32, previous, ) F(Int32, next_same, ) \
    F(Int32, previous_same, )
FORETELL_STRUCT(Block, BLOCK_FIELDS)

#define COUNTS_FIELDS(F) \
    F(Int, scheduled, ) F(Int, admitted, ) F(Int, preempted, ) F(Int, prefill_seqs, ) \
    F(Int, prefill_tokens, ) F(Int, prefill_pairs, ) F(Int, decode_seqs, ) F(Int, decode_pairs, ) \
    F(Int, draft_tokens, ) F(Int, adapters, ) F(Int, sampled, ) F(Int, finished, )
FORETELL_STRUCT(Counts, COUNTS_FIELDS)

#define ENTRY_FIELDS(F) \
    F(Int32, slot, ) F(Int32, tokens, ) F(Int32, samples, ) F(Int32, drafts, ) F(Int32, adapter, ) \
    F(Int32, admitted, ) F(Int32, preempted, ) F(Int32, sampled, ) F(Int32, finished, )
FORETELL_STRUCT(Entry, ENTRY_FIELDS)

#define PLACE_FIELDS(F) \
    F(Int32, content, ) F(Int32, block, )
FORETELL_STRUCT(Place, PLACE_FIELDS)

#define INPUT_FIELDS(F) \
    F(Int32, content, ) F(Int32, offset, ) F(Int32, length, ) F(Int32, first_embed, ) \
    F(Int32, end_embed, ) F(Int32, held, ) F(Int32, step, ) F(Int32, embeds, ) F(Int32, cached, ) \
    F(Int32, refs, ) F(Int32, next, ) F(Int32, previous, )
FORETELL_STRUCT(Input, INPUT_FIELDS)

#define CLOCK_FIELDS(F) \
    F(double, now_s, ) F(double, first_end_s, ) F(double, last_end_s, ) F(Int, in_flight, ) \
    F(Int, oldest, ) F(Int, next_arrival, ) F(Int, preemptions, ) F(Int, iterations, ) F(Int, launched, ) \
    F(Int, until_first_token, )
FORETELL_STRUCT(Clock, CLOCK_FIELDS)

#define STEADYSUMS_FIELDS(F) \
    F(Int, active, ) F(Int, iteration, ) F(Int, next_event, ) F(Int, members, ) F(Int, scheduled, ) \
    F(Int, pairs, ) F(Int, sliding, ) F(Int, given_up, )
FORETELL_STRUCT(SteadySums, STEADYSUMS_FIELDS)

#define RECORDS_FIELDS(F) \
    F(Engine, engine, ) F(Counts, older, ) F(Counts, newer, ) F(Clock, clock, ) F(SteadySums, sums, ) \
    F(Int, index, ) F(Int, version, ) F(Int, inputs, )
FORETELL_STRUCT(Records, RECORDS_FIELDS)

#define TALLY_FIELDS(F) \
    F(double, begun_s,[2]) F(double, counted_s, ) F(double, until_s, ) F(double, counted_for_s, ) \
    F(double, free_s, ) F(double, free_squared_s, ) F(Int, calls, ) F(Int, scheduled, ) \
    F(Int, completed, ) F(Int, tokens, ) F(Int, told, )
FORETELL_STRUCT(Tally, TALLY_FIELDS)

#define LIVERECORD_FIELDS(F) \
    F(Records, at, ) F(Tally, tally, )
FORETELL_STRUCT(LiveRecord, LIVERECORD_FIELDS)

#define BELIEF_FIELDS(F) \
    F(double, length,[9]) F(Int, key, )
FORETELL_STRUCT(Belief, BELIEF_FIELDS)

#define MARK_FIELDS(F) \
    F(Int, tokens, ) F(double, at_s, )
FORETELL_STRUCT(Mark, MARK_FIELDS)

#define REQUEST_FIELDS(F) \
    F(double, length,[9]) F(double, arrival_s, ) F(double, ttft_target_s, ) F(double, tpot_target_s, ) \
    F(Int, key, ) F(Int32, prompt, ) F(Int32, output, ) F(Int32, max_tokens, ) F(Int32, computed, ) \
    F(Int32, blocks, ) F(Int32, left, ) F(Int32, cached_tokens, ) F(Int32, priority, ) \
    F(Int32, preemptions, ) F(Int32, scheduled, ) F(Int32, in_flight, ) F(Int32, adapter, ) \
    F(Int32, inputs, ) F(Int32, older, )
FORETELL_STRUCT(Request, REQUEST_FIELDS)

#define SNAPSHOT_FIELDS(F) \
    F(Engine, engine, ) F(Int, version, ) F(Int, figures,[5]) F(Int, steps, ) F(Int, shapes,[2][6]) \
    F(double, begun_s, ) F(double, known_s, ) F(Int, contents, ) F(Int, inputs, )
FORETELL_STRUCT(Snapshot, SNAPSHOT_FIELDS)

#define ARRIVAL_FIELDS(F) \
    F(double, length,[9]) F(double, at_s, ) F(double, every_s, ) F(double, ttft_target_s, ) \
    F(double, tpot_target_s, ) F(Int, prompt, ) F(Int, max_tokens, ) F(Int, priority, ) \
    F(Int, cached_tokens, ) F(Int, key, ) F(Int, sequences, )
FORETELL_STRUCT(Arrival, ARRIVAL_FIELDS)

#define QUESTION_FIELDS(F) \
    F(Int, engine, ) F(Int, samples, ) F(Int, cached_tokens, ) F(Int, first, ) F(Int, announced, ) \
    F(Int, end, ) F(Int, version, ) F(double, delay_s, )
FORETELL_STRUCT(Question, QUESTION_FIELDS)

#define KEPT_FIELDS(F) \
    F(Int, version, ) F(Int, samples, ) F(double, now_s, ) F(double, first_end_s, ) \
    F(double, last_end_s, ) F(Int, made, )
FORETELL_STRUCT(Kept, KEPT_FIELDS)

#define AT_FIELDS(F) \
    F(Int, address, ) F(Int, size, )
FORETELL_STRUCT(At, AT_FIELDS)

#define PLACEDMODEL_FIELDS(F) \
    F(At, coefficients, ) F(At, values, ) F(At, layout, )
FORETELL_STRUCT(PlacedModel, PLACEDMODEL_FIELDS)

#define PLACED_FIELDS(F) \
    F(At, records, ) F(At, sequences, ) F(At, running, ) F(At, blocks, ) F(At, places, ) \
    F(At, first_with, ) F(At, inputs, ) F(At, older, ) F(At, newer, ) F(At, beliefs, ) \
    F(PlacedModel, model, ) F(Int, max_num_scheduled_tokens, ) F(Int, max_num_seqs, )
FORETELL_STRUCT(Placed, PLACED_FIELDS)

}  // namespace foretell
