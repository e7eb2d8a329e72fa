// The rows of the kernel's arrays. `foretell.kernel.layout` makes numpy's dtypes of them.

#pragma once

#include "base.h"

namespace foretell {

// The arguments for each field: type, name, dimensions.
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
    size_t first, second;  // 0: absent
};

struct Field {
    const char* name;
    size_t offset;
    const char* kind;  // numpy's name of a number type, or the name of a structure
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
    F(double, first_token_s, ) /* infinite before it comes */ \
    F(double, finished_s, ) \
    F(double, ttft_target_s, ) /* 0: none */ \
    F(double, tpot_target_s, ) \
    F(Int32, status, ) \
    F(Int32, priority, ) \
    F(Int32, prompt, ) \
    F(Int32, output, ) /* output tokens that are known */ \
    F(Int32, stop_after, ) /* output tokens after which it ends, for any reason */ \
    F(Int32, max_tokens, ) /* the limit that the scheduler knows; 0: none */ \
    F(Int32, computed, ) /* KV entries, including those of scheduled steps */ \
    F(Int32, blocks, ) /* in each KV cache group */ \
    F(Int32, left, ) /* first blocks that local attention has left behind */ \
    F(Int32, hits, ) /* cached blocks that admission finds, if blocks have no identity */ \
    F(Int32, cached, ) /* tokens found cached at the latest admission */ \
    F(Int32, preemptions, ) \
    F(Int32, placeholders, ) /* tokens scheduled to be sampled and not yet known */ \
    F(Int32, in_flight, ) /* tokens in scheduled steps whose output is not applied */ \
    F(Int32, stale, ) /* those of `in_flight` scheduled before a preemption */ \
    F(Int32, is_prefill_chunk, ) /* 1 if its latest step leaves known tokens to compute */ \
    F(Int32, next, ) /* neighbours in the waiting queue */ \
    F(Int32, previous, ) \
    F(Int32, place, ) /* where its blocks begin in `State.places` */ \
    F(Int32, committed, ) /* leading blocks of its table whose content is known */ \
    F(Int32, drafts, ) /* draft tokens that its next step verifies */ \
    F(Int32, adapter, ) /* its LoRA adapter; 0: none */ \
    F(Int32, blocked, ) /* 1 until its grammar is compiled, 2 once it was passed over */ \
    F(Int32, noted, ) /* output tokens up to which a rollout has noted marks */ \
    F(Int32, inputs, ) /* multimodal inputs of its prompt */ \
    F(Int32, first_input, ) /* the row of the first of them in `State.inputs` */ \
    F(Int32, encoding, ) /* 1 while it runs and has inputs to compute, or holds some */ \
    F(Int32, encoded, ) /* embeddings that the step being scheduled encodes for it */ \
    /* Iteration numbers of `steady.h`, which steps decodes in bulk. */ \
    F(Int32, entered, ) \
    F(Int32, last, ) /* the last iteration that schedules it */ \
    F(Int32, end, ) /* the iteration in which it ends */
FORETELL_STRUCT(Sequence, SEQUENCE_FIELDS)

#define ENGINE_FIELDS(F) \
    /* Configuration. */ \
    F(Int, block_size, ) \
    F(Int, max_num_scheduled_tokens, ) \
    F(Int, max_num_seqs, ) /* or `max_num_active_seqs` if set */ \
    F(Int, max_model_len, ) \
    F(Int, max_num_batched_tokens, ) \
    F(Int, long_prefill_token_threshold, ) \
    F(Int, long_prefill_token_threshold_adaptive, ) \
    F(Int, long_prefill_threshold_when_alone, ) \
    F(Int, by_priority, ) \
    F(Int, enable_chunked_prefill, ) \
    F(Int, watermark_blocks, ) \
    F(Int, groups, ) /* KV cache groups: a block of a sequence takes one block of each */ \
    F(Int, local_groups, ) /* the last of them, with local attention */ \
    F(Int, window, ) /* tokens of a sliding window, including the next token */ \
    F(Int, chunk, ) /* tokens of a chunk; 0: sliding window */ \
    F(Int, most_local_blocks, ) /* most blocks that admission reserves in a local group */ \
    F(Int, reserve_full_isl, ) \
    F(Int, knows_content, ) \
    F(Int, depth, ) /* steps in flight: 2 with async scheduling */ \
    F(Int, drafts, ) /* most draft tokens of a sequence in one step; 0: no drafts */ \
    F(Int, lookahead, ) /* tokens behind a step's own that get blocks, too */ \
    F(Int, drops_hit, ) /* 1: the last block of a cached prefix is recomputed */ \
    F(Int, max_loras, ) /* most adapters in one step; 0: no adapters */ \
    F(Int, max_num_encoder_input_tokens, ) /* embeddings that one step may encode */ \
    F(Int, encoder_cache_size, ) /* embeddings */ \
    F(Int, disable_chunked_mm_input, ) /* 1: no step computes only a part of an input */ \
    F(Int, num_prefill_lookahead, ) /* tokens behind a step's own that drafting reads */ \
    F(Int, hash_lookahead, ) /* tokens behind a block that its content depends on */ \
    F(Int, prefill_schedule_interval, ) /* prefill in one of so many steps; 0: in each */ \
    F(Int, rules, ) /* the bits of `foretell.model.SchedulerRule` */ \
    /* The shares of steps that draft and that accept at least 1, 2, ... tokens. */ \
    F(double, drafted_ratio, [16]) \
    F(double, accepted_ratio, [16]) \
    F(Int, co_schedules, ) /* 1: offline requests get what online ones leave */ \
    /* The least TTFT target of the online requests that are expected at any time; 0: they have */ \
    /* none, infinite: no online requests are expected. */ \
    F(double, online_ttft_s, ) \
    F(double, usual_online_blocks, ) /* kept free for bursts of online requests */ \
    /* Counters. */ \
    F(Int, step_counter, ) /* of vLLM's engine core; it decides when prefill is deferred */ \
    F(Int, prefill_capacity_bound, ) /* 1 while prefill is not deferred */ \
    F(Int, running, ) \
    F(Int, waiting, ) \
    F(Int, head, ) /* the ends of the waiting queue */ \
    F(Int, tail, ) \
    F(Int, free, ) /* free KV blocks */ \
    F(Int, held, ) \
    F(Int, owned, ) /* free plus held blocks, constant */ \
    F(Int, unhashed, ) /* free blocks without content */ \
    F(Int, blank_head, ) /* top of the stack of free blocks without content */ \
    F(Int, lru_head, ) /* free blocks with content, least recently used first */ \
    F(Int, lru_tail, ) \
    F(Int, encoding, ) /* running sequences whose `encoding` is 1 */ \
    F(Int, encoder_budget, ) /* embeddings that the step being scheduled may still encode */ \
    F(Int, encoder_free, ) /* embeddings for which the encoder cache has room */ \
    F(Int, encoder_freeable, ) /* the same if all evictable contents were evicted */ \
    F(Int, encoder_head, ) /* evictable contents (cached, held by no sequence), oldest first */ \
    F(Int, encoder_tail, )
FORETELL_STRUCT(Engine, ENGINE_FIELDS)

#define BLOCK_FIELDS(F) \
    F(Int32, refs, ) \
    F(Int32, content, ) /* NONE if it cannot be hit */ \
    F(Int32, next, ) /* neighbours in the queue of free blocks */ \
    F(Int32, previous, ) \
    F(Int32, next_same, ) /* neighbours among blocks of equal content, oldest first */ \
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
    F(Int, sampled, ) /* this and the next are set on completion of the batch */ \
    F(Int, finished, )
FORETELL_STRUCT(Counts, COUNTS_FIELDS)

#define ENTRY_FIELDS(F) \
    /* Parallel lists; their lengths are in `Counts`. */ \
    F(Int32, slot, ) \
    F(Int32, tokens, ) /* tokens that `slot` computes */ \
    F(Int32, samples, ) /* 1 if the step samples a token for it */ \
    F(Int32, drafts, ) /* draft tokens among `tokens` */ \
    F(Int32, adapter, ) /* adapters in the step, each once */ \
    F(Int32, admitted, ) /* this and the next three are slots */ \
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
    F(Int32, first_embed, ) /* its tokens before the first embedding */ \
    F(Int32, end_embed, ) /* its tokens up to and including the last embedding */ \
    F(Int32, held, ) /* 1 while its sequence needs the cached embeddings */ \
    F(Int32, step, ) /* what the step being scheduled does with it */ \
    /* Only for contents. */ \
    F(Int32, embeds, ) /* number of embeddings */ \
    F(Int32, cached, ) /* 1 if they are in the encoder cache */ \
    F(Int32, refs, ) /* sequences that hold them */ \
    F(Int32, next, ) /* neighbours among evictable contents */ \
    F(Int32, previous, )
FORETELL_STRUCT(Input, INPUT_FIELDS)

#define CLOCK_FIELDS(F) \
    F(double, now_s, ) \
    F(double, first_end_s, ) /* end of the oldest step in flight */ \
    F(double, last_end_s, ) /* end of the newest step in flight */ \
    F(double, noted_s, ) /* when output was noted last */ \
    F(double, preempted_s, ) /* see `rollout::stalls` */ \
    F(Int, in_flight, ) /* steps in flight */ \
    F(Int, oldest, ) /* which of the two batches is the oldest step in flight */ \
    F(Int, next_arrival, ) \
    F(Int, iterations, ) /* steps completed */ \
    F(Int, launched, ) /* steps begun since the start, including dummy steps */ \
    F(Int, until_first_token, ) /* 1: a rollout ends with the first token of a watched request */
FORETELL_STRUCT(Clock, CLOCK_FIELDS)

#define STEADYSUMS_FIELDS(F) \
    F(Int, active, ) \
    F(Int, iteration, ) /* since `enter` */ \
    F(Int, next_event, ) /* the next iteration after which a steady request changes */ \
    F(Int, members, ) /* steady requests; they are first in the running list */ \
    F(Int, scheduled, ) /* steady requests that the next iteration schedules */ \
    F(Int, pairs, ) /* their query-key pairs in it */ \
    F(Int, sliding, ) /* scheduled ones whose windows leave blocks behind */ \
    F(Int, given_up, ) /* KV blocks of chunks that the next iteration leaves behind */
FORETELL_STRUCT(SteadySums, STEADYSUMS_FIELDS)

#define RECORDS_FIELDS(F) \
    F(Engine, engine, ) \
    F(Counts, older, ) \
    F(Counts, newer, ) \
    F(Clock, clock, ) \
    F(SteadySums, sums, ) \
    F(Int, index, ) /* the snapshot that `restore` wrote here */ \
    F(Int, version, ) /* the version of that snapshot */ \
    F(Int, inputs, ) /* rows of multimodal inputs and of their contents */
FORETELL_STRUCT(Records, RECORDS_FIELDS)

#define TALLY_FIELDS(F) \
    F(double, begun_s, [2]) /* when each of the two batches began on the device */ \
    F(double, counted_s, ) /* free blocks are summed up to this time */ \
    F(double, until_s, ) /* the end of that sum */ \
    F(double, counted_for_s, ) \
    F(double, free_s, ) /* free blocks times seconds */ \
    F(double, free_squared_s, ) \
    F(Int, calls, ) \
    F(Int, scheduled, ) /* steps so far */ \
    F(Int, completed, ) \
    F(Int, tokens, ) /* scheduled so far, including recomputed ones */ \
    F(Int, told, ) /* 1: the state was received, and may be impossible */
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
    F(double, preempted_s, ) /* up to `at_s` */
FORETELL_STRUCT(Mark, MARK_FIELDS)

#define REQUEST_FIELDS(F) \
    F(double, length, [9]) /* its length distribution (`lengths.h`) */ \
    F(double, arrival_s, ) \
    F(double, ttft_target_s, ) /* 0: none */ \
    F(double, tpot_target_s, ) \
    F(Int, key, ) /* identifies the request in draws; the same in every snapshot */ \
    F(Int32, prompt, ) \
    F(Int32, output, ) /* output tokens that are known */ \
    F(Int32, max_tokens, ) /* 0: no limit */ \
    F(Int32, computed, ) /* KV entries, including those of scheduled steps */ \
    F(Int32, blocks, ) /* blocks that hold these, in each KV cache group */ \
    F(Int32, left, ) /* first blocks that local attention has left behind */ \
    F(Int32, cached_tokens, ) /* believed if it waits, otherwise as found */ \
    F(Int32, priority, ) \
    F(Int32, preemptions, ) \
    F(Int32, scheduled, ) /* tokens that the newest step in flight computes */ \
    F(Int32, in_flight, ) /* output tokens that are not known yet, with async scheduling */ \
    F(Int32, adapter, ) /* its LoRA adapter; 0: none */ \
    F(Int32, inputs, ) /* multimodal inputs of its prompt */ \
    F(Int32, older, ) /* tokens that the step in flight before the newest computes; 0: unknown */
FORETELL_STRUCT(Request, REQUEST_FIELDS)

#define SNAPSHOT_FIELDS(F) \
    F(Engine, engine, ) /* the configuration; most counters are not used */ \
    F(Int, version, ) /* positive; changes with every change of the snapshot */ \
    F(Int, figures, [5]) \
    F(Int, steps, ) /* steps in flight */ \
    F(Int, shapes, [2][6]) /* of the steps in flight, the oldest first */ \
    F(double, begun_s, ) /* when the oldest step in flight began */ \
    F(double, known_s, ) /* the snapshot shows all that happened until then */ \
    F(Int, contents, ) /* contents of multimodal inputs that are cached or needed */ \
    F(Int, inputs, ) /* inputs of all requests */
FORETELL_STRUCT(Snapshot, SNAPSHOT_FIELDS)

#define ARRIVAL_FIELDS(F) \
    F(double, length, [9]) \
    F(double, at_s, ) /* when it joins the queue */ \
    F(double, every_s, ) /* between its sequences */ \
    F(double, ttft_target_s, ) /* 0: none */ \
    F(double, tpot_target_s, ) \
    F(Int, prompt, ) \
    F(Int, max_tokens, ) /* 0: no limit */ \
    F(Int, priority, ) \
    F(Int, cached_tokens, ) /* of its prompt, as believed */ \
    F(Int, key, ) /* of its first sequence; that of each next one is 1 higher */ \
    F(Int, sequences, )
FORETELL_STRUCT(Arrival, ARRIVAL_FIELDS)

#define QUESTION_FIELDS(F) \
    F(Int, engine, ) \
    F(Int, samples, ) /* rollouts, each with its own output lengths */ \
    F(Int, cached_tokens, ) /* of the new request's prompt, as believed */ \
    F(Int, first, ) /* the first arrival on its way to this engine */ \
    F(Int, announced, ) /* one behind the last announced arrival */ \
    F(Int, end, ) /* one behind the last unannounced arrival that is expected */ \
    F(Int, version, ) /* of the snapshot, the announced arrivals and the model together */ \
    /* From `at_s` of announced arrivals and of the new request to the engine's queue. */ \
    F(double, delay_s, )
FORETELL_STRUCT(Question, QUESTION_FIELDS)

#define KEPT_FIELDS(F) \
    F(Int, version, ) \
    F(Int, samples, ) \
    F(double, now_s, ) /* 0 if no step may be scheduled now, as it does not matter then */ \
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
    F(Int, max_num_scheduled_tokens, ) /* this and the next: every step is checked by them */ \
    F(Int, max_num_seqs, )
FORETELL_STRUCT(Placed, PLACED_FIELDS)

}  // namespace foretell
