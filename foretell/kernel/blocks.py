"""The KV blocks of one engine: counted only, or with the identity that prefix caching needs.

Mirrors `KVCacheManager.allocate_slots` and what it calls (vllm/v1/core, 0.32). A block of tokens
takes a KV block of every KV cache group. The last groups may be of *local* attention, by a sliding
window or by chunks: there a sequence gives its first blocks back while it goes on.
"""

from foretell.kernel.jit import compiled, inlined
from foretell.kernel.layout import NONE, Record, State
from foretell.kernel.pool import give_back, new_block, publish, take, unlink_free


@inlined
def blocks_for(state: State, tokens: int) -> int:
    """The number of blocks that hold `tokens` tokens in one group."""
    return -(-tokens // state.engine.block_size)


@inlined
def left_behind(state: State, tokens: int) -> int:
    """The first blocks that local attention needs no more for what follows `tokens` tokens.

    `get_num_skipped_tokens` of the managers (vllm/v1/core/single_type_kv_cache_manager.py).
    """
    engine = state.engine
    if engine.local_groups == 0:
        return 0
    if engine.chunk > 0:
        return tokens // engine.chunk * engine.chunk // engine.block_size
    return max(0, tokens - engine.window + 1) // engine.block_size


@inlined
def held_by(state: State, blocks: int, left: int) -> int:
    """The KV blocks of all groups for so many of a sequence, `left` of which are left behind."""
    return state.engine.groups * blocks - state.engine.local_groups * left


@inlined
def blocks_to_admit(engine: Record, tokens: int, reserve: int, hits: int) -> int:
    """The KV blocks that a sequence needs beside its `hits`: for `tokens` tokens now, and to be
    admitted at all for `reserve` tokens (0: for none), of which local attention needs few."""
    needed = engine.groups * (-(-tokens // engine.block_size) - hits)
    if reserve == 0:
        return needed
    blocks = -(-reserve // engine.block_size)
    local = max(0, min(blocks, engine.most_local_blocks) - hits)
    full_groups = engine.groups - engine.local_groups
    return max(needed, full_groups * (blocks - hits) + engine.local_groups * local)


@inlined
def find_hits(state: State, slot: int) -> int:
    """The blocks of the longest cached prefix of `slot`; its last token is always computed."""
    engine, seq = state.engine, state.sequences[slot]
    most = (seq.prompt + seq.output - 1) // engine.block_size
    if not engine.knows_content:
        return min(seq.hits, max(0, most - engine.drops_hit))
    full_groups = engine.groups - engine.local_groups
    hits = 0 if full_groups > 0 else most
    while hits < most and _cached(state, slot, hits, 0, full_groups):
        hits += 1
    if engine.drops_hit and hits > 0:
        hits -= 1
    return hits if engine.local_groups == 0 else _local_hits(state, slot, hits)


@inlined
def _cached(state: State, slot: int, index: int, first: int, end: int) -> bool:
    """Whether the groups from `first` up to `end` all have the content of a block."""
    place = state.sequences[slot].place + index * state.engine.groups
    for group in range(first, end):
        content = state.places[place + group].content
        if content == NONE or state.first_with[content] == NONE:
            return False
    return True


@compiled
def _local_hits(state: State, slot: int, most: int) -> int:
    """How many of the first `most` blocks local attention can do without computing them.

    It needs only those that the next token attends to: `find_longest_cache_hit` of
    `SlidingWindowManager` and `ChunkedLocalAttentionManager`.
    """
    engine = state.engine
    first, end = engine.groups - engine.local_groups, engine.groups
    if engine.chunk > 0:
        hits = most * engine.block_size // engine.chunk * engine.chunk // engine.block_size
        while hits < most and _cached(state, slot, hits, first, end):
            hits += 1
        return hits
    needed, run = blocks_for(state, engine.window - 1), 0
    for i in range(most - 1, -1, -1):
        run = run + 1 if _cached(state, slot, i, first, end) else 0
        if run > 0 and run >= needed:
            return i + run
    return run


@inlined
def evictable(state: State, slot: int, hits: int) -> int:
    """The number of KV blocks of its `hits` that are free until they are used.

    Where blocks have no identity all of them count, as if nobody held them now.
    """
    engine, left = state.engine, left_behind(state, hits * state.engine.block_size)
    if not engine.knows_content:
        return held_by(state, hits, left)
    place, count = state.sequences[slot].place, 0
    for group in range(engine.groups):
        for i in range(_first_of(state, group, left), hits):
            block = state.first_with[state.places[place + i * engine.groups + group].content]
            count += state.blocks[block].refs == 0
    return count


@inlined
def _first_of(state: State, group: int, left: int) -> int:
    """The first block that a sequence holds of a group."""
    return left if group >= state.engine.groups - state.engine.local_groups else 0


@inlined
def admit(state: State, slot: int, hits: int) -> None:
    """Give `slot`, which begins to run, the blocks that it hits as its first ones."""
    engine, seq = state.engine, state.sequences[slot]
    seq.blocks = seq.committed = hits
    seq.left = left_behind(state, hits * engine.block_size)
    if not engine.knows_content:
        take(state, held_by(state, hits, seq.left))
        return
    for group in range(engine.groups):
        for i in range(_first_of(state, group, seq.left), hits):
            place = state.places[seq.place + i * engine.groups + group]
            index = state.first_with[place.content]
            block = state.blocks[index]
            if block.refs == 0:
                unlink_free(state, index)
                take(state, 1)
            block.refs += 1
            place.block = index


@inlined
def grow(state: State, slot: int, tokens: int) -> bool:
    """Give `slot` blocks for `tokens` tokens; False, with none given, if too few are free.

    A model that drafts gets blocks for what it looks ahead, too. Blocks that local attention has
    left behind are given back in either case.
    """
    engine, seq = state.engine, state.sequences[slot]
    if engine.local_groups > 0:
        _leave_behind(state, slot)
    slots = min(tokens + engine.lookahead, engine.max_model_len)
    if slots > seq.blocks * engine.block_size and not _take_blocks(state, slot, slots):
        return False
    if engine.knows_content:
        # vLLM commits what a step will compute when it schedules it: a request that is admitted
        # later in the same step may hit these blocks.
        commit(state, slot, min(tokens, seq.prompt + seq.output))
    return True


@compiled
def _leave_behind(state: State, slot: int) -> None:
    """Give back what local attention needs no more, also for steps in flight."""
    engine, seq = state.engine, state.sequences[slot]
    left = min(left_behind(state, max(0, seq.computed - seq.in_flight)), seq.blocks)
    if left <= seq.left:
        return
    if engine.knows_content:
        for group in range(engine.groups - engine.local_groups, engine.groups):
            for i in range(left - 1, seq.left - 1, -1):
                give_back(state, state.places[seq.place + i * engine.groups + group].block)
    else:
        take(state, engine.local_groups * (seq.left - left))
    seq.left = left


@compiled
def _take_blocks(state: State, slot: int, tokens: int) -> bool:
    engine, seq = state.engine, state.sequences[slot]
    needed = blocks_for(state, tokens) - seq.blocks
    if engine.groups * needed > engine.free:
        return False
    if engine.knows_content:
        for group in range(engine.groups):
            for i in range(seq.blocks, seq.blocks + needed):
                place = seq.place + i * engine.groups + group
                state.places[place].block = new_block(state)
    take(state, engine.groups * needed)
    seq.blocks += needed
    return True


@compiled
def commit(state: State, slot: int, tokens: int) -> None:
    """Let others hit the full blocks of the first `tokens` of `slot`, which are computed.

    To be called only where blocks have identity.
    """
    engine, seq, full = state.engine, state.sequences[slot], tokens // state.engine.block_size
    for group in range(engine.groups):
        for i in range(max(seq.committed, _first_of(state, group, seq.left)), full):
            place = state.places[seq.place + i * engine.groups + group]
            if place.content != NONE:
                publish(state, place.block, place.content)
    seq.committed = max(seq.committed, full)


@compiled
def release(state: State, slot: int) -> None:
    """Free all blocks of `slot`."""
    engine, seq = state.engine, state.sequences[slot]
    if engine.knows_content:
        for group in range(engine.groups):
            # So that the tail is reused first.
            for i in range(seq.blocks - 1, _first_of(state, group, seq.left) - 1, -1):
                give_back(state, state.places[seq.place + i * engine.groups + group].block)
    else:
        take(state, -held_by(state, seq.blocks, seq.left))
    seq.blocks = seq.committed = seq.left = 0
