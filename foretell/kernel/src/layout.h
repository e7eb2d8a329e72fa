// The rows of the kernel's arrays. `foretell.kernel.layout` makes numpy's dtypes of them.

#pragma once

#include "base.h"

namespace foretell {

// Field by field: type, name, dimensions.
#define FORETELL_DECLARE(type, name, dimensions) type name dimensions;
#define FORETELL_DESCRIBE(type, name, dimensions) \
    {#name, offsetof(Row, name), kind_of((type*)nullptr), dimensions_of((decltype(Row::name)*)nullptr)},
#define FORETELL_STRUCT(Name, fields) \
    struct Name { \
        fields(FORETELL_DECLARE) \
    }; \
    template <> struct Described<Name> { \
        using Row = Name; \
        static constexpr const char* name = #Name; \
        static constexpr Field rows[] = {fields(FORETELL_DESCRIBE)}; \
    };

struct Dimensions {
    size_t first, second;  // 0: there is none
};

struct Field {
    const char* name;
    size_t offset;
    const char* kind;  // numpy's name of a number, or that of a structure
    Dimensions dimensions;
};

template <class T> struct Described;

template <class T> constexpr const char* kind_of(T*) { return Described<T>::name; }
template <> constexpr const char* kind_of(double*) { return "f8"; }
template <> constexpr const char* kind_of(Int32*) { return "i4"; }
template <> constexpr const char* kind_of(Int*) { return "i8"; }

template <class T> constexpr Dimensions dimensions_of(T*) { return {0, 0}; }
template <class T, size_t N> constexpr Dimensions dimensions_of(T (*)[N]) { return {N, 0}; }
template <class T, size_t N, size_t M> constexpr Dimensions dimensions_of(T (*)[N][M]) {
    return {N, M};
}

#define SEQUENCE_FIELDS(F) \
    F(double, arrival_s, ) \
    F(double, first_token_s, ) /* infinite where there is none yet */ \
    F(double, finished_s, ) \
    F(double, ttft_target_s, ) /* 0: none */ \
    F(double, tpot_target_s, ) \
    F(Int32, status, ) \
    F(Int32, priority, ) \
    F(Int32, prompt, ) \
    F(Int32, output, ) /* generated tokens that are known */ \
    F(Int32, stop_after, ) /* output tokens after which it ends, whatever the cause */ \
    F(Int32, max_tokens, ) /* the limit that the scheduler knows; 0: none */ \
    F(Int32, computed, ) /* KV entries, those of scheduled steps included */ \
    F(Int32, blocks, ) /* of each KV cache group */ \
    F(Int32, left, ) /* the first of them that local attention has left behind */ \
    F(Int32, hits, ) /* cached blocks that admission finds, where blocks have no identity */ \
    F(Int32, cached, ) /* tokens found cached at the latest admission */ \
    F(Int32, preemptions, ) \
    F(Int32, placeholders, ) /* tokens scheduled to be sampled and not yet known */ \
    F(Int32, in_flight, ) /* tokens in scheduled steps whose output is not applied */ \
    F(Int32, stale, ) /* those of `in_flight` scheduled before a preemption */ \
    F(Int32, is_prefill_chunk, ) /* its latest step leaves some of what is known to compute */ \
    F(Int32, next, ) /* the neighbours in the waiting queue */ \
    F(Int32, previous, ) \
    F(Int32, place, ) /* where its blocks begin in `State.places` */ \
    F(Int32, committed, ) /* leading blocks of its table whose content is known */ \
    F(Int32, drafts, ) /* draft tokens that its next step verifies */ \
    F(Int32, adapter, ) /* its LoRA adapter; 0: none */ \
    F(Int32, blocked, ) /* 1 while its grammar is compiled, 2 since it was passed over */ \
    F(Int32, noted, ) /* output tokens for which a rollout has passed the marks */ \
    F(Int32, inputs, ) /* multimodal inputs of its prompt */ \
    F(Int32, first_input, ) /* the row of the first of them in `State.inputs` */ \
    F(Int32, encoding, ) /* 1 while it runs and has some to compute, or holds some */ \
    F(Int32, encoded, ) /* embeddings that the step in the making encodes for it */ \
    /* Used where decodes are stepped in bulk (`steady.h`): numbers of its iterations. */ \
    F(Int32, entered, ) \
    F(Int32, last, ) /* the last iteration that schedules it */ \
    F(Int32, end, ) /* the iteration in which it ends */
FORETELL_STRUCT(Sequence, SEQUENCE_FIELDS)

#define ENGINE_FIELDS(F) \
    /* Configuration. */ \
    F(Int, block_size, ) \
    F(Int, max_num_scheduled_tokens, ) \
    F(Int, max_num_seqs, ) /* or `max_num_active_seqs`, where that is set */ \
    F(Int, max_model_len, ) \
    F(Int, max_num_batched_tokens, ) \
    F(Int, long_prefill_token_threshold, ) \
    F(Int, long_prefill_token_threshold_adaptive, ) \
    F(Int, long_prefill_threshold_when_alone, ) \
    F(Int, by_priority, ) \
    F(Int, enable_chunked_prefill, ) \
    F(Int, watermark_blocks, ) \
    F(Int, groups, ) /* KV cache groups: each block of a sequence is one of each group */ \
    F(Int, local_groups, ) /* the last of them, whose layers attend to few tokens */ \
    F(Int, window, ) /* to so many, the next one included */ \
    F(Int, chunk, ) /* or, if not 0, to those of the same chunk of so many */ \
    F(Int, most_local_blocks, ) /* that admission reserves in each of these groups */ \
    F(Int, reserve_full_isl, ) \
    F(Int, knows_content, ) \
    F(Int, depth, ) /* steps in flight: 2 with async scheduling */ \
    F(Int, drafts, ) /* most draft tokens of a sequence in one step; 0: none are drafted */ \
    F(Int, lookahead, ) /* tokens behind a step's own that it has blocks for */ \
    F(Int, drops_hit, ) /* the last block of a cached prefix is computed again */ \
    F(Int, max_loras, ) /* adapters in one step; 0: there are none */ \
    F(Int, max_num_encoder_input_tokens, ) /* embeddings that one step may encode */ \
    F(Int, encoder_cache_size, ) /* embeddings */ \
    F(Int, disable_chunked_mm_input, ) /* no step computes only some of an input's tokens */ \
    F(Int, num_prefill_lookahead, ) /* tokens behind a step's own that drafting reads */ \
    F(Int, hash_lookahead, ) /* tokens behind a block that its content depends on */ \
    F(Int, prefill_schedule_interval, ) /* in one of so many steps; 0: in each */ \
    F(Int, rules, ) /* the bits of `foretell.model.SchedulerRule` */ \
    /* The shares of steps that draft and that accept at least 1, 2, ... tokens. */ \
    F(double, drafted_ratio, [16]) \
    F(double, accepted_ratio, [16]) \
    F(Int, co_schedules, ) /* offline requests get what online ones leave */ \
    /* The least TTFT target of the online requests that are expected at any moment; 0: of such */ \
    /* as have none, infinite: nobody is expected. */ \
    F(double, online_ttft_s, ) \
    F(double, usual_online_blocks, ) /* kept free for bursts of online requests */ \
    /* Counters. */ \
    F(Int, step_counter, ) /* of vLLM's engine core, by which prompts are put off */ \
    F(Int, prefill_capacity_bound, ) /* 1 while they are not */ \
    F(Int, running, ) \
    F(Int, waiting, ) \
    F(Int, head, ) /* the ends of the waiting queue */ \
    F(Int, tail, ) \
    F(Int, free, ) /* free KV blocks */ \
    F(Int, held, ) \
    F(Int, owned, ) /* free and held blocks together, which never changes */ \
    F(Int, unhashed, ) /* free blocks without content */ \
    F(Int, blank_head, ) /* the top of the stack of those */ \
    F(Int, lru_head, ) /* free blocks with content, least recently used first */ \
    F(Int, lru_tail, ) \
    F(Int, encoding, ) /* running sequences whose `encoding` is 1 */ \
    F(Int, encoder_budget, ) /* embeddings that the step in the making may still encode */ \
    F(Int, encoder_free, ) /* embeddings for which the encoder cache has room */ \
    F(Int, encoder_freeable, ) /* and with what nobody holds dropped */ \
    F(Int, encoder_head, ) /* cached contents that nobody holds, the oldest first */ \
    F(Int, encoder_tail, )
FORETELL_STRUCT(Engine, ENGINE_FIELDS)

#define BLOCK_FIELDS(F) \
    F(Int32, refs, ) \
    F(Int32, content, ) /* NONE where nobody else can hit it */ \
    F(Int32, next, ) /* the neighbours in the queue of free blocks */ \
    F(Int32, previous, ) \
    F(Int32, next_same, ) /* among blocks of equal content, the oldest first */ \
    F(Int32, previous_same, )
FORETELL_STRUCT(Block, BLOCK_FIELDS)

#define COUNTS_FIELDS(F) \
    F(Int, scheduled, ) \
    F(Int, admitted, ) \
    F(Int, preempted, ) \
    F(Int, prefill_seqs, ) \
    F(Int, prefill_tokens, ) \
    F(Int, prefill_pairs, ) \
    F(Int, decode_seqs, ) \
    F(Int, decode_pairs, ) \
    F(Int, draft_tokens, ) \
    F(Int, adapters, ) \
    F(Int, sampled, ) /* this and the next are set when the batch is completed */ \
    F(Int, finished, )
FORETELL_STRUCT(Counts, COUNTS_FIELDS)

#define ENTRY_FIELDS(F) \
    /* Parallel lists, as long as the batch's counts say; all but two hold slots. */ \
    F(Int32, slot, ) \
    F(Int32, tokens, ) /* tokens that `slot` computes */ \
    F(Int32, samples, ) /* 1 where the step samples a token for it */ \
    F(Int32, drafts, ) /* those of `tokens` that are drafts */ \
    F(Int32, adapter, ) /* each of those in the step once */ \
    F(Int32, admitted, ) \
    F(Int32, preempted, ) \
    F(Int32, sampled, ) /* sequences that got a token when the step was completed */ \
    F(Int32, finished, )
FORETELL_STRUCT(Entry, ENTRY_FIELDS)

#define PLACE_FIELDS(F) \
    F(Int32, content, ) \
    F(Int32, block, )
FORETELL_STRUCT(Place, PLACE_FIELDS)

#define INPUT_FIELDS(F) \
    F(Int32, content, ) /* the row of its content */ \
    F(Int32, offset, ) /* its first token in the prompt */ \
    F(Int32, length, ) /* tokens */ \
    F(Int32, first_embed, ) /* tokens of it before the first that is an embedding */ \
    F(Int32, end_embed, ) /* and those up to the last one */ \
    F(Int32, held, ) /* 1 while its sequence needs the cached embeddings */ \
    F(Int32, step, ) /* what the step in the making does with it */ \
    /* Of contents only. */ \
    F(Int32, embeds, ) /* embeddings */ \
    F(Int32, cached, ) /* 1 where they are in the encoder cache */ \
    F(Int32, refs, ) /* sequences that hold them */ \
    F(Int32, next, ) /* the neighbours among those that nobody holds */ \
    F(Int32, previous, )
FORETELL_STRUCT(Input, INPUT_FIELDS)

#define CLOCK_FIELDS(F) \
    F(double, now_s, ) \
    F(double, first_end_s, ) /* when the older of the steps in flight ends */ \
    F(double, last_end_s, ) /* when the younger one ends */ \
    F(double, noted_s, ) /* when output was noted last */ \
    F(double, preempted_s, ) /* see `rollout::stalls` */ \
    F(Int, in_flight, ) /* steps in flight */ \
    F(Int, oldest, ) /* which of the two batches the older one is */ \
    F(Int, next_arrival, ) \
    F(Int, iterations, ) /* steps completed */ \
    F(Int, launched, ) /* steps begun since the start, those without own work included */ \
    F(Int, until_first_token, ) /* a rollout ends with the first token of any watched one */
FORETELL_STRUCT(Clock, CLOCK_FIELDS)

#define STEADYSUMS_FIELDS(F) \
    F(Int, active, ) \
    F(Int, iteration, ) /* since `enter` */ \
    F(Int, next_event, ) /* the next iteration after which a steady request changes */ \
    F(Int, members, ) /* steady requests, the first of the running list */ \
    F(Int, scheduled, ) /* those that the next iteration schedules */ \
    F(Int, pairs, ) /* their query-key pairs in it */ \
    F(Int, sliding, ) /* those of them whose windows leave blocks behind */ \
    F(Int, given_up, ) /* KV blocks of chunks that the next iteration leaves behind */
FORETELL_STRUCT(SteadySums, STEADYSUMS_FIELDS)

#define RECORDS_FIELDS(F) \
    F(Engine, engine, ) \
    F(Counts, older, ) \
    F(Counts, newer, ) \
    F(Clock, clock, ) \
    F(SteadySums, sums, ) \
    F(Int, index, ) /* which snapshot `restore` has written here */ \
    F(Int, version, ) /* and which version of it */ \
    F(Int, inputs, ) /* rows of multimodal inputs and of their contents */
FORETELL_STRUCT(Records, RECORDS_FIELDS)

#define TALLY_FIELDS(F) \
    F(double, begun_s, [2]) /* when each of the two batches began on the device */ \
    F(double, counted_s, ) /* up to when free blocks have been summed */ \
    F(double, until_s, ) /* when that ends */ \
    F(double, counted_for_s, ) \
    F(double, free_s, ) /* free blocks times seconds */ \
    F(double, free_squared_s, ) \
    F(Int, calls, ) \
    F(Int, scheduled, ) /* steps so far */ \
    F(Int, completed, ) \
    F(Int, tokens, ) /* scheduled so far, those computed again included */ \
    F(Int, told, ) /* 1: the state is what somebody told, which may be none */
FORETELL_STRUCT(Tally, TALLY_FIELDS)

#define LIVERECORD_FIELDS(F) \
    F(Records, at, ) \
    F(Tally, tally, )
FORETELL_STRUCT(LiveRecord, LIVERECORD_FIELDS)

#define BELIEF_FIELDS(F) \
    F(double, length, [9]) \
    F(Int, key, )
FORETELL_STRUCT(Belief, BELIEF_FIELDS)

#define MARK_FIELDS(F) \
    F(Int, tokens, ) \
    F(double, at_s, ) \
    F(double, preempted_s, ) /* up to then */
FORETELL_STRUCT(Mark, MARK_FIELDS)

#define REQUEST_FIELDS(F) \
    F(double, length, [9]) /* what is believed of its output length */ \
    F(double, arrival_s, ) \
    F(double, ttft_target_s, ) /* 0: none */ \
    F(double, tpot_target_s, ) \
    F(Int, key, ) /* stands for the request in draws; the same in every snapshot */ \
    F(Int32, prompt, ) \
    F(Int32, output, ) /* generated and known */ \
    F(Int32, max_tokens, ) /* 0: no limit */ \
    F(Int32, computed, ) /* KV entries, those of scheduled steps included */ \
    F(Int32, blocks, ) /* of each KV cache group, that hold these */ \
    F(Int32, left, ) /* the first of them that local attention has left behind */ \
    F(Int32, cached_tokens, ) /* of those that wait: as is believed, others: as was found */ \
    F(Int32, priority, ) \
    F(Int32, preemptions, ) \
    F(Int32, scheduled, ) /* tokens that the newest step in flight computes */ \
    F(Int32, in_flight, ) /* output tokens that are not known yet, with async scheduling */ \
    F(Int32, adapter, ) /* its LoRA adapter; 0: none */ \
    F(Int32, inputs, ) /* multimodal inputs of its prompt */ \
    F(Int32, older, ) /* tokens that the step in flight before the newest computes; 0: untold */
FORETELL_STRUCT(Request, REQUEST_FIELDS)

#define SNAPSHOT_FIELDS(F) \
    F(Engine, engine, ) /* the configuration; the counters are not looked at */ \
    F(Int, version, ) /* another number, above 0, for every change of the snapshot */ \
    F(Int, figures, [5]) \
    F(Int, steps, ) /* steps in flight */ \
    F(Int, shapes, [2][6]) /* of the steps in flight, the oldest first */ \
    F(double, begun_s, ) /* when the oldest step in flight began */ \
    F(double, known_s, ) /* until when nothing happened but what the snapshot shows */ \
    F(Int, contents, ) /* contents of multimodal inputs that are cached or wanted */ \
    F(Int, inputs, ) /* inputs of all requests */
FORETELL_STRUCT(Snapshot, SNAPSHOT_FIELDS)

#define ARRIVAL_FIELDS(F) \
    F(double, length, [9]) \
    F(double, at_s, ) /* when it joins the queue */ \
    F(double, every_s, ) /* from one of its sequences to the next one */ \
    F(double, ttft_target_s, ) /* 0: none */ \
    F(double, tpot_target_s, ) \
    F(Int, prompt, ) \
    F(Int, max_tokens, ) /* 0: no limit */ \
    F(Int, priority, ) \
    F(Int, cached_tokens, ) /* of its prompt, as is believed */ \
    F(Int, key, ) /* of its first sequence; the next one's is 1 higher */ \
    F(Int, sequences, )
FORETELL_STRUCT(Arrival, ARRIVAL_FIELDS)

#define QUESTION_FIELDS(F) \
    F(Int, engine, ) \
    F(Int, samples, ) /* rollouts, each with other output lengths */ \
    F(Int, cached_tokens, ) /* of the new request's prompt, as is believed */ \
    F(Int, first, ) /* the first arrival that is on its way to this engine */ \
    F(Int, announced, ) /* behind the last of those that somebody announced */ \
    F(Int, end, ) /* behind the last of those that are expected besides */ \
    F(Int, version, ) /* of the snapshot, the announced arrivals and the model together */ \
    /* From `at_s` of those announced, and the new request, to its queue. */ \
    F(double, delay_s, )
FORETELL_STRUCT(Question, QUESTION_FIELDS)

#define KEPT_FIELDS(F) \
    F(Int, version, ) \
    F(Int, samples, ) \
    F(double, now_s, ) /* where a step may be scheduled now; otherwise it does not matter */ \
    F(double, first_end_s, ) \
    F(double, last_end_s, ) \
    F(Int, made, ) /* how often the rollouts have been made */
FORETELL_STRUCT(Kept, KEPT_FIELDS)

#define AT_FIELDS(F) \
    F(Int, address, ) \
    F(Int, size, )
FORETELL_STRUCT(At, AT_FIELDS)

#define PLACEDMODEL_FIELDS(F) \
    F(At, coefficients, ) \
    F(At, values, ) \
    F(At, layout, )
FORETELL_STRUCT(PlacedModel, PLACEDMODEL_FIELDS)

#define PLACED_FIELDS(F) \
    F(At, records, ) \
    F(At, sequences, ) \
    F(At, running, ) \
    F(At, blocks, ) \
    F(At, places, ) \
    F(At, first_with, ) \
    F(At, inputs, ) \
    F(At, older, ) \
    F(At, newer, ) \
    F(At, beliefs, ) \
    F(PlacedModel, model, ) \
    F(Int, max_num_scheduled_tokens, ) /* the limits that every step is checked against */ \
    F(Int, max_num_seqs, )
FORETELL_STRUCT(Placed, PLACED_FIELDS)

}  // namespace foretell
