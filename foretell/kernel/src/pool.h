// The pool of KV blocks: which are free, and their contents.
//
// Mirrors `BlockPool` (vllm/v1/core/block_pool.py, 0.32). Its free queue has blocks without content
// first, then blocks with content, least recently used first.

#pragma once

#include "state.h"

namespace foretell::pool {

// Count `blocks` free blocks as held; negative: held blocks as free.
INLINED void take(const State& state, Int blocks) {
    auto& engine = state.engine;
    engine.free -= blocks;
    engine.held += blocks;
    require(state.broken, engine.free >= 0, "more KV blocks taken than exist");
}

COMPILED void push_blank(const State& state, Int index) {
    auto& engine = state.engine;
    state.blocks[index].next = engine.blank_head;
    engine.blank_head = index;
    engine.unhashed += 1;
}

COMPILED void push_used(const State& state, Int index) {
    auto& engine = state.engine;
    auto& block = state.blocks[index];
    block.previous = engine.lru_tail;
    block.next = NONE;
    if (engine.lru_tail == NONE) {
        engine.lru_head = index;
    } else {
        state.blocks[engine.lru_tail].next = index;
    }
    engine.lru_tail = index;
}

// Drop one reference to a block; free it if that was the last one.
COMPILED void give_back(const State& state, Int index) {
    auto& block = state.blocks[index];
    block.refs -= 1;
    if (block.refs > 0) return;
    take(state, -1);
    if (block.content == NONE) {
        push_blank(state, index);
    } else {
        push_used(state, index);
    }
}

// Remove a block with content from the free queue.
COMPILED void unlink_free(const State& state, Int index) {
    auto& engine = state.engine;
    const Int before = state.blocks[index].previous, behind = state.blocks[index].next;
    if (before == NONE) {
        engine.lru_head = behind;
    } else {
        state.blocks[before].next = behind;
    }
    if (behind == NONE) {
        engine.lru_tail = before;
    } else {
        state.blocks[behind].previous = before;
    }
}

COMPILED void forget(const State& state, Int index) {
    auto& block = state.blocks[index];
    const Int before = block.previous_same, behind = block.next_same;
    if (before == NONE) {
        state.first_with[block.content] = behind;
    } else {
        state.blocks[before].next_same = behind;
    }
    if (behind != NONE) state.blocks[behind].previous_same = before;
    block.content = NONE;
}

// Take a block without content, or else the least recently used one, whose content is lost.
COMPILED Int new_block(const State& state) {
    auto& engine = state.engine;
    Int index;
    if (engine.unhashed > 0) {
        index = engine.blank_head;
        engine.blank_head = state.blocks[index].next;
        engine.unhashed -= 1;
    } else {
        index = engine.lru_head;
        unlink_free(state, index);
        forget(state, index);
    }
    state.blocks[index].refs = 1;
    return index;
}

// Make a block available as a cache hit. Blocks of equal content are not merged: the first is hit.
COMPILED void publish(const State& state, Int index, Int content) {
    auto& block = state.blocks[index];
    block.content = content;
    block.next_same = NONE;
    block.previous_same = NONE;
    Int other = state.first_with[content];
    if (other == NONE) {
        state.first_with[content] = index;
        return;
    }
    while (state.blocks[other].next_same != NONE) other = state.blocks[other].next_same;
    state.blocks[other].next_same = index;
    block.previous_same = other;
}

}  // namespace foretell::pool
