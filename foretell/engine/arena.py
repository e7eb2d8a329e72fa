"""Places of the sequences' block tables, with the contents of their blocks."""

import numpy as np

from foretell.engine.content import Content
from foretell.engine.sequence import Sequence
from foretell.kernel.layout import NONE, PLACE, UNUSED
from foretell.kernel.live import Live
from foretell.model import EngineConfig

_FIRST_CAPACITY = 1024
# A step in flight behind the one that ends a sequence holds one more token.
_SPARE_TOKENS = 2


class Arena:
    """Gives every sequence its place in `Live.places`, and contents numbers."""

    def __init__(self, config: EngineConfig) -> None:
        self._block_size, self._groups = config.block_size_tokens, config.kv_cache_groups
        self._numbers: dict[bytes, int] = {}
        # Tokens that a step holds beyond a sequence's end: drafts, also of the step behind it.
        drafts = 2 * config.num_speculative_tokens + config.num_lookahead_tokens
        self._spare_tokens = _SPARE_TOKENS + drafts
        self._contents = 0
        self._used = 0

    def place(self, live: Live, seq: Sequence) -> Live:
        """Return the engine's arrays with a place for `seq`, and set `place` in its row."""
        blocks = self._blocks_of(seq.row)
        if self._used + blocks > len(live.places):
            live = self._compacted(live, blocks)
        numbers = np.full(blocks, NONE, np.int32)
        if seq.content is not None:
            numbers[:] = self._numbered(seq.content, blocks)
        contents = self._groups * self._contents
        if contents > len(live.first_with):
            first_with = np.full(2 * contents, NONE, np.int32)
            first_with[: len(live.first_with)] = live.first_with
            live = live._replace(first_with=first_with)
        live.places["content"][self._used : self._used + blocks] = numbers
        seq.row["place"] = self._used
        self._used += blocks
        return live

    def _numbered(self, content: Content, blocks: int) -> list[int]:
        """The numbers of the contents of `blocks` blocks; equal content has equal numbers."""
        groups, own = self._groups, content.shared_blocks
        shared = blocks if own is None else min(blocks, groups * own)
        numbers: list[int] = []
        for index in range(0, shared, groups):
            key = content.block_hash(index // groups)
            found = self._numbers.get(key)
            if found is None:
                found = self._numbers[key] = self._contents
                self._contents += 1
            numbers.extend(range(groups * found, groups * found + groups))
        first = groups * self._contents
        self._contents += (blocks - shared) // groups
        numbers.extend(range(first, first + blocks - shared))
        return numbers

    def _blocks_of(self, row: np.void) -> int:
        """The most blocks that a sequence will ever hold, in all groups."""
        known = int(row["prompt"]) + max(int(row["stop_after"]), int(row["output"]))
        most = known + self._spare_tokens
        return self._groups * -(-most // self._block_size)

    def _compacted(self, live: Live, wanted: int) -> Live:
        """Return the engine's arrays with compacted places and room for `wanted` more."""
        living = [row for row in live.sequences if row["status"] != UNUSED]
        capacity = 2 * (sum(map(self._blocks_of, living)) + wanted)
        places = np.zeros(max(_FIRST_CAPACITY, capacity), PLACE)
        self._used = 0
        for row in living:
            size, old, new = self._blocks_of(row), int(row["place"]), self._used
            places[new : new + size] = live.places[old : old + size]
            row["place"] = new
            self._used += size
        return live._replace(places=places)
