"""The KV blocks of one engine: counted only, or with the identity that prefix caching needs.

Mirrors `KVCacheManager.allocate_slots` and `BlockPool` (vllm/v1/core, 0.32) for one group of full
attention layers. vLLM's free queue has blocks without content in front and those with content
behind, least recently used first.
"""

from foretell.kernel.jit import compiled, inlined
from foretell.kernel.layout import NONE, State


@inlined
def blocks_for(state: State, tokens: int) -> int:
    """The number of blocks that hold `tokens` tokens."""
    return -(-tokens // state.engine.block_size)


@inlined
def find_hits(state: State, slot: int) -> int:
    """The blocks of the longest cached prefix of `slot`; its last token is always computed."""
    seq = state.sequences[slot]
    most = (seq.prompt + seq.output - 1) // state.engine.block_size
    if not state.engine.knows_content:
        return min(seq.hits, most)
    for hits in range(most):
        content = state.places[seq.place + hits].content
        if content == NONE or state.first_with[content] == NONE:
            return hits
    return most


@inlined
def evictable(state: State, slot: int, hits: int) -> int:
    """The number of its `hits` that are free blocks until they are used.

    Where blocks have no identity all of them count, as if nobody held them now.
    """
    if not state.engine.knows_content:
        return hits
    place, count = state.sequences[slot].place, 0
    for i in range(hits):
        block = state.first_with[state.places[place + i].content]
        count += state.blocks[block].refs == 0
    return count


@inlined
def admit(state: State, slot: int, hits: int) -> None:
    """Give `slot`, which begins to run, the blocks that it hits as its first ones."""
    engine, seq = state.engine, state.sequences[slot]
    seq.blocks = seq.committed = hits
    if not engine.knows_content:
        _take(state, hits)
        return
    for i in range(hits):
        index = state.first_with[state.places[seq.place + i].content]
        block = state.blocks[index]
        if block.refs == 0:
            _unlink_free(state, index)
            _take(state, 1)
        block.refs += 1
        state.places[seq.place + i].block = index


@inlined
def grow(state: State, slot: int, tokens: int) -> bool:
    """Give `slot` blocks for `tokens` tokens; False, with nothing changed, if too few are free."""
    engine, seq = state.engine, state.sequences[slot]
    if tokens > seq.blocks * engine.block_size and not _take_blocks(state, slot, tokens):
        return False
    if engine.knows_content:
        # vLLM commits what a step will compute when it schedules it: a request that is admitted
        # later in the same step may hit these blocks.
        commit(state, slot, min(tokens, seq.prompt + seq.output))
    return True


@compiled
def _take_blocks(state: State, slot: int, tokens: int) -> bool:
    engine, seq = state.engine, state.sequences[slot]
    needed = blocks_for(state, tokens) - seq.blocks
    if needed > engine.free:
        return False
    if engine.knows_content:
        for i in range(needed):
            state.places[seq.place + seq.blocks + i].block = _new_block(state)
    _take(state, needed)
    seq.blocks += needed
    return True


@compiled
def commit(state: State, slot: int, tokens: int) -> None:
    """Let others hit the full blocks of the first `tokens` of `slot`, which are computed.

    To be called only where blocks have identity.
    """
    seq, full = state.sequences[slot], tokens // state.engine.block_size
    for i in range(seq.committed, full):
        index, content = state.places[seq.place + i].block, state.places[seq.place + i].content
        if content != NONE:
            _publish(state, index, content)
    seq.committed = max(seq.committed, full)


@compiled
def release(state: State, slot: int) -> None:
    """Free all blocks of `slot`."""
    engine, seq = state.engine, state.sequences[slot]
    if not engine.knows_content:
        _take(state, -seq.blocks)
        seq.blocks = 0
        return
    for i in range(seq.blocks - 1, -1, -1):  # so that the tail is reused first
        index = state.places[seq.place + i].block
        block = state.blocks[index]
        block.refs -= 1
        if block.refs == 0:
            _take(state, -1)
            if block.content == NONE:
                _push_blank(state, index)
            else:
                _push_used(state, index)
    seq.blocks = seq.committed = 0


@inlined
def _take(state: State, blocks: int) -> None:
    engine = state.engine
    engine.free -= blocks
    engine.held += blocks
    assert engine.free >= 0, "more KV blocks taken than exist"


@compiled
def _new_block(state: State) -> int:
    """Take a blank block, or the least recently used one, whose content is then lost."""
    engine = state.engine
    if engine.unhashed > 0:
        index = engine.blank_head
        engine.blank_head = state.blocks[index].next
        engine.unhashed -= 1
    else:
        index = engine.lru_head
        _unlink_free(state, index)
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
def _unlink_free(state: State, index: int) -> None:
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
def _publish(state: State, index: int, content: int) -> None:
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
