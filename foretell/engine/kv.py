"""The KV blocks of one engine: counted only, or with the identity that prefix caching needs.

Mirrors `KVCacheManager.allocate_slots` and `BlockPool` (vllm/v1/core, 0.32) for one group of full
attention layers.
"""

from collections import OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import ClassVar

from foretell.engine.sequence import Sequence


class Block:
    """One KV block that has been handed out; without a hash its content is nobody else's."""

    __slots__ = ("hash", "refs")

    def __init__(self) -> None:
        self.refs = 1
        self.hash: bytes | None = None


class BlockCount:
    """Blocks as numbers: all that can be known without the requests' content. Nothing is shared."""

    knows_content: ClassVar[bool] = False

    def __init__(self, block_size_tokens: int, free: int, held: int = 0) -> None:
        """`held` blocks belong to sequences that run already."""
        self.block_size = block_size_tokens
        self.free = free
        self.held = held
        # What must be conserved. Prefix sharing in a real engine lets the blocks its requests
        # hold add up to more than exist, so this need not be the engine's number of blocks.
        self._owned = free + held

    def find(self, _seq: Sequence) -> Seq[Block]:
        """The longest cached prefix of what `seq` must compute, in order; its last token never."""
        return ()

    def evictable(self, hits: Seq[Block]) -> int:
        """How many of `hits` count as free until they are used."""
        return 0

    def admit(self, seq: Sequence, hits: Seq[Block]) -> None:
        """`seq` begins to run with `hits` as its first blocks."""

    def grow(self, seq: Sequence, tokens: int) -> bool:
        """Give `seq` the blocks to hold `tokens`; False, and nothing changed, if too few."""
        needed = -(-tokens // self.block_size) - seq.blocks
        if needed > self.free:
            return False
        if needed > 0:
            self.take(needed)
            seq.blocks += needed
        return True

    def take(self, blocks: int) -> None:
        """Hand out `blocks`; the caller has counted them into its sequences."""
        self.free -= blocks
        self.held += blocks
        assert self.free >= 0, "more KV blocks taken than exist"

    def commit(self, seq: Sequence, tokens: int) -> None:
        """The first `tokens` of `seq` are known and computed: others may hit their full blocks."""

    def release(self, seq: Sequence) -> None:
        """Take all blocks of `seq` back."""
        self.free += seq.blocks
        self.held -= seq.blocks
        seq.blocks = 0

    def check(self, running: Iterable[Sequence]) -> None:
        """Blocks are conserved, counted anew; a violation is a bug in the twin."""
        held = sum(seq.blocks for seq in running)
        assert held == self.held, "blocks held are miscounted"
        assert held + self.free == self._owned, "KV blocks are not conserved"


class BlockPool(BlockCount):
    """Blocks with content: full ones are found again by hash until they are reused.

    vLLM's free queue has unhashed blocks in front and hashed ones behind, least recently used
    first. Unhashed blocks are interchangeable, so a number stands for them.
    """

    knows_content: ClassVar[bool] = True

    def __init__(self, block_size_tokens: int, blocks: int) -> None:
        super().__init__(block_size_tokens, blocks)
        self._unhashed = blocks
        self._evictable: OrderedDict[Block, None] = OrderedDict()
        # Blocks of equal content are not merged: the one that was there first is hit.
        self._cached: dict[bytes, dict[Block, None]] = {}
        self._tables: dict[Sequence, list[Block]] = {}
        self._committed: dict[Sequence, int] = {}  # leading blocks of the table that have a hash

    def find(self, seq: Sequence) -> Seq[Block]:
        hits: list[Block] = []
        if seq.content is None:
            return hits
        for index in range((seq.num_tokens - 1) // self.block_size):
            same = self._cached.get(seq.content.block_hash(index))
            if same is None:
                break
            hits.append(next(iter(same)))
        return hits

    def evictable(self, hits: Seq[Block]) -> int:
        return sum(not block.refs for block in hits)

    def admit(self, seq: Sequence, hits: Seq[Block]) -> None:
        for block in hits:
            if not block.refs:
                del self._evictable[block]
                self.take(1)
            block.refs += 1
        self._tables[seq] = list(hits)
        self._committed[seq] = seq.blocks = len(hits)

    def grow(self, seq: Sequence, tokens: int) -> bool:
        table = self._tables[seq]
        needed = -(-tokens // self.block_size) - len(table)
        if needed > self.free:
            return False
        table.extend(self._new_block() for _ in range(needed))
        seq.blocks = len(table)
        # vLLM commits what a step will compute when it schedules it: a request that is admitted
        # later in the same step may hit these blocks.
        self.commit(seq, min(tokens, seq.num_tokens))
        return True

    def commit(self, seq: Sequence, tokens: int) -> None:
        if seq.content is None:
            return
        table, full = self._tables[seq], tokens // self.block_size
        for index in range(self._committed[seq], full):
            block = table[index]
            block.hash = seq.content.block_hash(index)
            self._cached.setdefault(block.hash, {})[block] = None
        self._committed[seq] = max(self._committed[seq], full)

    def release(self, seq: Sequence) -> None:
        self._committed.pop(seq, None)
        for block in reversed(self._tables.pop(seq, [])):  # so that the tail is evicted first
            block.refs -= 1
            if block.refs:
                continue
            self.take(-1)
            if block.hash is None:
                self._unhashed += 1
            else:
                self._evictable[block] = None
        seq.blocks = 0

    def check(self, running: Iterable[Sequence]) -> None:
        refs: dict[Block, int] = {}
        for seq in running:
            table = self._tables[seq]
            assert len(table) == seq.blocks, "blocks held are miscounted"
            for block in table:
                refs[block] = refs.get(block, 0) + 1
        assert len(refs) == self.held, "blocks held are miscounted"
        assert all(block.refs == count for block, count in refs.items()), "wrong reference count"
        assert self.free == self._unhashed + len(self._evictable), "free blocks are miscounted"
        assert self.free + self.held == self._owned, "KV blocks are not conserved"
        cached = {block for same in self._cached.values() for block in same}
        assert cached.issuperset(self._evictable), "a block in the free queue lost its hash"

    def _new_block(self) -> Block:
        """A blank block, or the least recently used cached one, whose content is then lost."""
        self.take(1)
        if self._unhashed:
            self._unhashed -= 1
            return Block()
        evicted, _ = self._evictable.popitem(last=False)
        assert evicted.hash is not None
        same = self._cached[evicted.hash]
        del same[evicted]
        if not same:
            del self._cached[evicted.hash]
        return Block()
