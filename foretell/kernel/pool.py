"""The pool of KV blocks: which are free, and which content they have.

Mirrors `BlockPool` (vllm/v1/core/block_pool.py, 0.32). Its free queue has blocks without content in
front and those with content behind, least recently used first.
"""

from foretell.kernel.jit import compiled, inlined
from foretell.kernel.layout import NONE, State


@inlined
def take(state: State, blocks: int) -> None:
    """Count `blocks` as held that were free; below 0: as free that were held."""
    engine = state.engine
    engine.free -= blocks
    engine.held += blocks
    assert engine.free >= 0, "more KV blocks taken than exist"


@compiled
def give_back(state: State, index: int) -> None:
    """One who held a block holds it no more."""
    block = state.blocks[index]
    block.refs -= 1
    if block.refs > 0:
        return
    take(state, -1)
    if block.content == NONE:
        _push_blank(state, index)
    else:
        _push_used(state, index)


@compiled
def new_block(state: State) -> int:
    """Take a blank block, or the least recently used one, whose content is then lost."""
    engine = state.engine
    if engine.unhashed > 0:
        index = engine.blank_head
        engine.blank_head = state.blocks[index].next
        engine.unhashed -= 1
    else:
        index = engine.lru_head
        unlink_free(state, index)
        _forget(state, index)
    state.blocks[index].refs = 1
    return index


@compiled
def _push_blank(state: State, index: int) -> None:
    engine = state.engine
    state.blocks[index].next = engine.blank_head
    engine.blank_head = index
    engine.unhashed += 1


@compiled
def _push_used(state: State, index: int) -> None:
    engine, block = state.engine, state.blocks[index]
    block.previous, block.next = engine.lru_tail, NONE
    if engine.lru_tail == NONE:
        engine.lru_head = index
    else:
        state.blocks[engine.lru_tail].next = index
    engine.lru_tail = index


@compiled
def unlink_free(state: State, index: int) -> None:
    """Remove a block with content from the free queue."""
    engine = state.engine
    before, behind = state.blocks[index].previous, state.blocks[index].next
    if before == NONE:
        engine.lru_head = behind
    else:
        state.blocks[before].next = behind
    if behind == NONE:
        engine.lru_tail = before
    else:
        state.blocks[behind].previous = before


@compiled
def publish(state: State, index: int, content: int) -> None:
    """Let the block be hit. Blocks of equal content are not merged: the first one is hit."""
    block = state.blocks[index]
    block.content, block.next_same, block.previous_same = content, NONE, NONE
    other = state.first_with[content]
    if other == NONE:
        state.first_with[content] = index
        return
    while state.blocks[other].next_same != NONE:
        other = state.blocks[other].next_same
    state.blocks[other].next_same = index
    block.previous_same = other


@compiled
def _forget(state: State, index: int) -> None:
    block = state.blocks[index]
    before, behind = block.previous_same, block.next_same
    if before == NONE:
        state.first_with[block.content] = behind
    else:
        state.blocks[before].next_same = behind
    if behind != NONE:
        state.blocks[behind].previous_same = before
    block.content = NONE
