"""vLLM's queue of free KV blocks in segments, so that what will be needed again stays longest."""

from collections.abc import Iterable
from typing import Any

from vllm.v1.core.kv_cache_utils import (
    FreeKVCacheBlockQueue,
    get_block_hash,
    make_block_hash_with_group_id,
)

from foretell.cosched import SEGMENTS, Retention
from foretell.cosched.retention import EMPTY, ONLINE, UNNEEDED


class SegmentedFreeBlocks(FreeKVCacheBlockQueue):  # type: ignore[misc]
    """Stands in for `block_pool.free_block_queue`; blocks leave segment by segment."""

    def __init__(self, block_pool: Any) -> None:
        """Take over the pool's queue, in its order."""
        self._pool = block_pool
        self._segments = [FreeKVCacheBlockQueue([]) for _ in range(SEGMENTS)]
        self._place = [EMPTY] * block_pool.num_gpu_blocks
        """The segment of each free block, by block id."""
        self._left_by_offline = bytearray(block_pool.num_gpu_blocks)
        self.num_free_blocks = 0
        self.freeing_offline = False
        """Whether the blocks that are being freed are an offline request's."""
        self.retention = Retention(self._changed)
        for block in block_pool.free_block_queue.get_all_free_blocks():
            self._put(block, EMPTY if block.block_hash is None else ONLINE)

    def free_before(self, segment: int) -> int:
        """Free blocks that leave before any of `segment`."""
        return sum(each.num_free_blocks for each in self._segments[:segment])

    def popleft(self) -> Any:
        for segment in self._segments:
            if segment.num_free_blocks:
                self.num_free_blocks -= 1
                return segment.popleft()
        raise ValueError("No free blocks available")

    def popleft_n(self, n: int) -> list[Any]:
        assert self.num_free_blocks >= n, "more blocks are taken than are free"
        self.num_free_blocks -= n
        taken: list[Any] = []
        for segment in self._segments:
            if len(taken) == n:
                break
            taken += segment.popleft_n(min(n - len(taken), segment.num_free_blocks))
        return taken

    def remove(self, block: Any) -> None:
        self._segments[self._place[block.block_id]].remove(block)
        self.num_free_blocks -= 1

    def append(self, block: Any) -> None:
        self._left_by_offline[block.block_id] = self.freeing_offline
        self._put(block, self._segment_of(block))

    def append_n(self, blocks: Iterable[Any]) -> None:
        for block in blocks:
            self.append(block)

    def prepend_n(self, blocks: list[Any]) -> None:
        """What holds nothing that could be found again is used first."""
        for block in blocks:
            self._place[block.block_id] = EMPTY
        self._segments[EMPTY].prepend_n(blocks)
        self.num_free_blocks += len(blocks)

    def get_all_free_blocks(self) -> list[Any]:
        return [block for segment in self._segments for block in segment.get_all_free_blocks()]

    def _put(self, block: Any, segment: int) -> None:
        self._place[block.block_id] = segment
        self._segments[segment].append(block)
        self.num_free_blocks += 1

    def _segment_of(self, block: Any) -> int:
        if block.block_hash is None:
            return ONLINE  # somebody still reads it, and asked for it to leave late
        block_hash = get_block_hash(block.block_hash)
        return self.retention.segment(
            block_hash, offline=bool(self._left_by_offline[block.block_id])
        )

    def _changed(self, block_hash: bytes, segment: int) -> None:
        """Move a free block whose worth has changed."""
        key = make_block_hash_with_group_id(block_hash, 0)
        block = self._pool.cached_block_hash_to_block.get_one_block(key)
        if block is None or block.ref_cnt > 0 or block.is_null:
            return
        self.remove(block)
        left = UNNEEDED if self._left_by_offline[block.block_id] else ONLINE
        self._put(block, segment or left)
