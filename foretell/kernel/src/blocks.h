// The KV blocks of one engine: only counted, or with the identity that prefix caching needs.
//
// Mirrors `KVCacheManager.allocate_slots` and what it calls (vllm/v1/core, 0.32). A block of tokens
// takes a KV block of every KV cache group. The last groups may have *local* attention, with a
// sliding window or chunks: there a sequence frees its first blocks while it still runs.

#pragma once

#include "pool.h"

namespace foretell::blocks {

using namespace pool;

// The number of blocks that hold `tokens` tokens in one group.
INLINED Int blocks_for(const State& state, Int tokens) {
    return ceil_div(tokens, state.engine.block_size);
}

// The number of first blocks that local attention no longer needs behind `tokens` tokens.
//
// `get_num_skipped_tokens` of the managers (vllm/v1/core/single_type_kv_cache_manager.py).
INLINED Int left_behind(const State& state, Int tokens) {
    auto& engine = state.engine;
    if (engine.local_groups == 0) return 0;
    if (engine.chunk > 0) {
        return floor_div(floor_div(tokens, engine.chunk) * engine.chunk, engine.block_size);
    }
    return floor_div(max(Int(0), tokens - engine.window + 1), engine.block_size);
}

// The KV blocks in all groups for `blocks` blocks of a sequence, `left` of which are left behind.
INLINED Int held_by(const State& state, Int blocks, Int left) {
    return state.engine.groups * blocks - state.engine.local_groups * left;
}

// The KV blocks that a sequence needs besides its `hits`: for `tokens` tokens now, and at least
// those that admission reserves for `reserve` tokens (0: none); local attention reserves few.
INLINED Int blocks_to_admit(const Engine& engine, Int tokens, Int reserve, Int hits) {
    const Int needed = engine.groups * (ceil_div(tokens, engine.block_size) - hits);
    if (reserve == 0) return needed;
    const Int blocks = ceil_div(reserve, engine.block_size);
    const Int local = max(Int(0), min(blocks, engine.most_local_blocks) - hits);
    const Int full_groups = engine.groups - engine.local_groups;
    return max(needed, full_groups * (blocks - hits) + engine.local_groups * local);
}

// Whether the groups from `first` up to `end` all have the content of a block.
INLINED bool is_cached(const State& state, Int slot, Int index, Int first, Int end) {
    const Int place = state.sequences[slot].place + index * state.engine.groups;
    for (Int group = first; group < end; group++) {
        const Int content = state.places[place + group].content;
        if (content == NONE || state.first_with[content] == NONE) return false;
    }
    return true;
}

// How many of the first `most` blocks need not be computed for local attention.
//
// Only those that the next token attends to must be cached: `find_longest_cache_hit` of
// `SlidingWindowManager` and `ChunkedLocalAttentionManager`.
COMPILED Int local_hits(const State& state, Int slot, Int most) {
    auto& engine = state.engine;
    const Int first = engine.groups - engine.local_groups, end = engine.groups;
    if (engine.chunk > 0) {
        const Int chunks = floor_div(most * engine.block_size, engine.chunk);
        Int hits = floor_div(chunks * engine.chunk, engine.block_size);
        while (hits < most && is_cached(state, slot, hits, first, end)) hits += 1;
        return hits;
    }
    const Int needed = blocks_for(state, engine.window - 1);
    Int run = 0;
    for (Int i = most - 1; i >= 0; i--) {
        run = is_cached(state, slot, i, first, end) ? run + 1 : 0;
        if (run > 0 && run >= needed) return i + run;
    }
    return run;
}

// The blocks of the longest cached prefix of `slot`, without its last token, which is always
// computed.
INLINED Int find_hits(const State& state, Int slot) {
    auto& engine = state.engine;
    auto& seq = state.sequences[slot];
    const Int behind = max(Int(1), engine.hash_lookahead);
    const Int most = floor_div(max(Int(0), seq.prompt + seq.output - behind), engine.block_size);
    if (!engine.knows_content) return min(seq.hits, max(Int(0), most - engine.drops_hit));
    const Int full_groups = engine.groups - engine.local_groups;
    Int hits = full_groups > 0 ? 0 : most;
    while (hits < most && is_cached(state, slot, hits, 0, full_groups)) hits += 1;
    if (engine.drops_hit && hits > 0) hits -= 1;
    return engine.local_groups == 0 ? hits : local_hits(state, slot, hits);
}

// The first block that a sequence holds of a group.
INLINED Int first_of(const State& state, Int group, Int left) {
    return group >= state.engine.groups - state.engine.local_groups ? left : 0;
}

// The number of KV blocks of its `hits` that are free now.
//
// If blocks have no identity, all of them count as free.
INLINED Int evictable(const State& state, Int slot, Int hits) {
    auto& engine = state.engine;
    const Int left = left_behind(state, hits * engine.block_size);
    if (!engine.knows_content) return held_by(state, hits, left);
    const Int place = state.sequences[slot].place;
    Int count = 0;
    for (Int group = 0; group < engine.groups; group++) {
        for (Int i = first_of(state, group, left); i < hits; i++) {
            const Int content = state.places[place + i * engine.groups + group].content;
            count += state.blocks[state.first_with[content]].refs == 0;
        }
    }
    return count;
}

// Give `slot`, which begins to run, its hits as its first blocks.
INLINED void admit(const State& state, Int slot, Int hits) {
    auto& engine = state.engine;
    auto& seq = state.sequences[slot];
    seq.blocks = seq.committed = hits;
    seq.left = left_behind(state, hits * engine.block_size);
    if (!engine.knows_content) {
        take(state, held_by(state, hits, seq.left));
        return;
    }
    for (Int group = 0; group < engine.groups; group++) {
        for (Int i = first_of(state, group, seq.left); i < hits; i++) {
            auto& place = state.places[seq.place + i * engine.groups + group];
            const Int index = state.first_with[place.content];
            auto& block = state.blocks[index];
            if (block.refs == 0) {
                unlink_free(state, index);
                take(state, 1);
            }
            block.refs += 1;
            place.block = index;
        }
    }
}

// Free the blocks that local attention no longer needs, not even for steps in flight.
COMPILED void leave_behind(const State& state, Int slot) {
    auto& engine = state.engine;
    auto& seq = state.sequences[slot];
    const Int processed = max(Int(0), seq.computed - seq.in_flight);
    const Int left = min(left_behind(state, processed), seq.blocks);
    if (left <= seq.left) return;
    if (engine.knows_content) {
        for (Int group = engine.groups - engine.local_groups; group < engine.groups; group++) {
            for (Int i = left - 1; i >= seq.left; i--) {
                give_back(state, state.places[seq.place + i * engine.groups + group].block);
            }
        }
    } else {
        take(state, engine.local_groups * (seq.left - left));
    }
    seq.left = left;
}

COMPILED bool take_blocks(const State& state, Int slot, Int tokens) {
    auto& engine = state.engine;
    auto& seq = state.sequences[slot];
    const Int needed = blocks_for(state, tokens) - seq.blocks;
    if (engine.groups * needed > engine.free) return false;
    if (engine.knows_content) {
        for (Int group = 0; group < engine.groups; group++) {
            for (Int i = seq.blocks; i < seq.blocks + needed; i++) {
                state.places[seq.place + i * engine.groups + group].block = new_block(state);
            }
        }
    }
    take(state, engine.groups * needed);
    seq.blocks += needed;
    return true;
}

// Make the full blocks of the first `tokens` tokens of `slot` available as cache hits, as far as
// the tokens that their content depends on are known.
//
// Only call this if blocks have identity.
COMPILED void commit(const State& state, Int slot, Int tokens) {
    auto& engine = state.engine;
    auto& seq = state.sequences[slot];
    const Int known = max(Int(0), seq.prompt + seq.output - engine.hash_lookahead);
    const Int full = floor_div(min(tokens, known), engine.block_size);
    for (Int group = 0; group < engine.groups; group++) {
        for (Int i = max(seq.committed, first_of(state, group, seq.left)); i < full; i++) {
            auto& place = state.places[seq.place + i * engine.groups + group];
            if (place.content != NONE) publish(state, place.block, place.content);
        }
    }
    seq.committed = max(seq.committed, full);
}

// Allocate blocks for `tokens` tokens of `slot`; false, with none allocated, if too few are free.
//
// With drafts, the lookahead tokens get blocks, too. Blocks that local attention has left behind
// are freed in either case.
INLINED bool grow(const State& state, Int slot, Int tokens) {
    auto& engine = state.engine;
    auto& seq = state.sequences[slot];
    if (engine.local_groups > 0) leave_behind(state, slot);
    const Int slots = min(tokens + engine.lookahead, engine.max_model_len);
    if (slots > seq.blocks * engine.block_size && !take_blocks(state, slot, slots)) return false;
    if (engine.knows_content) {
        // vLLM commits what a step computes already when it schedules the step: a request that is
        // admitted later in the same step may hit these blocks.
        commit(state, slot, tokens);
    }
    return true;
}

// Free all blocks of `slot`.
COMPILED void release(const State& state, Int slot) {
    auto& engine = state.engine;
    auto& seq = state.sequences[slot];
    if (engine.knows_content) {
        for (Int group = 0; group < engine.groups; group++) {
            // In reverse, so that the tail is reused first.
            for (Int i = seq.blocks - 1; i >= first_of(state, group, seq.left); i--) {
                give_back(state, state.places[seq.place + i * engine.groups + group].block);
            }
        }
    } else {
        take(state, -held_by(state, seq.blocks, seq.left));
    }
    seq.blocks = seq.committed = seq.left = 0;
}

}  // namespace foretell::blocks
