"""Which cached blocks are kept: Echo's task-aware eviction.

Blocks are evicted segment by segment, the least recently used of a segment first:

    0    blocks without content
    1    blocks of offline requests that no waiting offline request needs
    2    blocks of online requests
    3..  blocks that 1, 2 to 3, 4 to 7, ... waiting offline requests need

The last segment takes all that more requests need. Without offline requests only 0 and 2 are in
use, which is vLLM's own order.
"""

from collections.abc import Callable, Iterable

EMPTY, UNNEEDED, ONLINE = 0, 1, 2
_DEGREES = 8
SEGMENTS = ONLINE + 1 + _DEGREES


class Retention:
    """How many waiting offline requests need each block, by the block's hash."""

    def __init__(self, changed: Callable[[bytes, int], None]) -> None:
        """`changed` hears of hashes whose segment changes: 0 where none is needed any more."""
        self._needed: dict[bytes, int] = {}
        self._changed = changed

    def need(self, hashes: Iterable[bytes]) -> None:
        """An offline request with these blocks begins to wait."""
        for each in hashes:
            before = self._needed.get(each, 0)
            self._needed[each] = before + 1
            if _degree(before) != _degree(before + 1):
                self._changed(each, ONLINE + _degree(before + 1))

    def release(self, hashes: Iterable[bytes]) -> None:
        """One that was given to `need` waits no more."""
        for each in hashes:
            left = self._needed.pop(each) - 1
            if left:
                self._needed[each] = left
            if _degree(left) != _degree(left + 1):
                self._changed(each, ONLINE + _degree(left) if left else 0)

    def needed(self, block_hash: bytes) -> int:
        """How many waiting offline requests have this block."""
        return self._needed.get(block_hash, 0)

    def segment(self, block_hash: bytes, *, offline: bool) -> int:
        """The segment of a cached block that a request of this class has left behind."""
        needed = self._needed.get(block_hash, 0)
        if needed:
            return ONLINE + _degree(needed)
        return UNNEEDED if offline else ONLINE


def _degree(needed: int) -> int:
    return min(needed.bit_length(), _DEGREES)
