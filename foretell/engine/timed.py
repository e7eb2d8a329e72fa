"""A twin that keeps its own steps in flight: the engine loop in compiled code."""

from collections.abc import Sequence as Seq
from math import inf
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from foretell.engine.sequence import Sequence
from foretell.engine.twin import Twin
from foretell.kernel.layout import ENTRY
from foretell.kernel.live import BELIEF, LIVE, Live, count_free
from foretell.model import EngineConfig


class FreeBlocks(NamedTuple):
    """Free KV blocks summed over time."""

    seconds: float
    blocks_s: float
    squared_blocks_s: float


class TimedTwin(Twin):
    """Its arrays, and who has come and ended; its steps are taken by `engine.table`.

    With async scheduling step k + 1 is scheduled when the output of k - 1 is applied, and begins
    when k ends, as in `foretell.kernel.rollout`.
    """

    def __init__(self, config: EngineConfig, *, prefix_cache: bool = False) -> None:
        super().__init__(config, prefix_cache=prefix_cache)
        self._records = np.zeros(1, LIVE)
        self._records["at"]["engine"] = self._state.engine
        self._state = self._state._replace(engine=self._records["at"]["engine"][0])
        self._clock, self._tally = self._records["at"]["clock"][0], self._records["tally"][0]
        self._tally["until_s"] = inf
        self.max_num_seqs = int(self._state.engine["max_num_seqs"])
        self._entries = [np.zeros(0, ENTRY), np.zeros(0, ENTRY)]
        self._beliefs = np.zeros(0, BELIEF)
        self.live = self._grown()
        """Its arrays; another tuple when one of them is."""

    @property
    def steps(self) -> int:
        """Scheduled so far."""
        return int(self._tally["scheduled"])

    @property
    def computed_tokens(self) -> int:
        """Scheduled so far, those computed again after a preemption included."""
        return int(self._tally["tokens"])

    @property
    def in_flight(self) -> int:
        """Steps in flight."""
        return int(self._clock["in_flight"])

    @property
    def ends_s(self) -> float:
        """When the oldest step in flight ends."""
        return float(self._clock["first_end_s"])

    @property
    def capacity(self) -> int:
        """Slots that there are."""
        return len(self._members)

    def arrive(self, seq: Sequence, length_row: Seq[float]) -> None:
        """`add`, with what predictors believe of its length."""
        self._forget_ended()
        self.add(seq)
        state, live = self._state, self.live
        if (
            state.sequences is not live.sequences
            or state.places is not live.places
            or state.first_with is not live.first_with
        ):
            self.live = self._grown()
        self._beliefs[seq.slot] = (length_row, crc32(seq.request_id.encode()))

    def ended(self, count: int, batch: int) -> list[Sequence]:
        """Whom the latest step ended: so many, whom the first or the second of its batches has."""
        self._scheduled_steps = int(self._tally["scheduled"])
        self._completed_steps = int(self._tally["completed"])
        found = self._named(self._entries[batch]["finished"][:count])
        self._ended.extend((self._scheduled_steps, seq) for seq in found)
        return found

    def count_free_blocks(self, since_s: float, until_s: float) -> None:
        """Sum free blocks up over this time, as it passes."""
        self._tally["counted_s"], self._tally["until_s"] = since_s, until_s

    def free_blocks_so_far(self, now_s: float) -> FreeBlocks:
        """The sums up to now."""
        count_free(self.live, now_s)
        tally = self._tally
        return FreeBlocks(
            float(tally["counted_for_s"]), float(tally["free_s"]), float(tally["free_squared_s"])
        )

    def _grown(self) -> Live:
        """The arrays as they are now: the twin replaces some when it needs more room."""
        state, capacity = self._state, len(self._members)
        if len(self._beliefs) < capacity:
            self._beliefs = _longer(self._beliefs, capacity)
            self._entries = [_longer(entries, capacity) for entries in self._entries]
        return Live(
            self._records,
            state.sequences,
            state.running,
            state.blocks,
            state.places,
            state.first_with,
            self._entries[0],
            self._entries[1],
            self._beliefs,
        )


def _longer(rows: NDArray[np.void], capacity: int) -> NDArray[np.void]:
    result = np.zeros(capacity, rows.dtype)
    result[: len(rows)] = rows
    return result
