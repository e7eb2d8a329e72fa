"""Where sequences keep their block tables and what is known of the blocks' content."""

import numpy as np

from foretell.engine.sequence import Sequence
from foretell.kernel.layout import NONE, PLACE, UNUSED, State

_FIRST_CAPACITY = 1024
# A step in flight behind the one that ends a sequence holds a token more.
_SPARE_TOKENS = 2


class Arena:
    """Gives every sequence its place in `State.places`, and contents numbers."""

    def __init__(self, block_size_tokens: int) -> None:
        self._block_size = block_size_tokens
        self._numbers: dict[bytes, int] = {}
        self._used = 0

    def place(self, state: State, seq: Sequence) -> State:
        """The state with a place for `seq`, whose row is set to it."""
        blocks = self._blocks_of(seq.row)
        if self._used + blocks > len(state.places):
            state = self._compacted(state, blocks)
        numbers = np.full(blocks, NONE, np.int32)
        if seq.content is not None:
            for index in range(blocks):
                key = seq.content.block_hash(index)
                numbers[index] = self._numbers.setdefault(key, len(self._numbers))
        if len(self._numbers) > len(state.first_with):
            first_with = np.full(2 * len(self._numbers), NONE, np.int32)
            first_with[: len(state.first_with)] = state.first_with
            state = state._replace(first_with=first_with)
        state.places["content"][self._used : self._used + blocks] = numbers
        seq.row["place"] = self._used
        self._used += blocks
        return state

    def _blocks_of(self, row: np.void) -> int:
        """The most blocks that a sequence will ever hold."""
        most = int(row["prompt"]) + max(int(row["stop_after"]), int(row["output"])) + _SPARE_TOKENS
        return -(-most // self._block_size)

    def _compacted(self, state: State, wanted: int) -> State:
        """The same with the places of the living moved together, and room for `wanted` more."""
        living = [row for row in state.sequences if row["status"] != UNUSED]
        capacity = 2 * (sum(map(self._blocks_of, living)) + wanted)
        places = np.zeros(max(_FIRST_CAPACITY, capacity), PLACE)
        self._used = 0
        for row in living:
            size, old, new = self._blocks_of(row), int(row["place"]), self._used
            places[new : new + size] = state.places[old : old + size]
            row["place"] = new
            self._used += size
        return state._replace(places=places)
