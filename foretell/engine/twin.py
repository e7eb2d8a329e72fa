"""vLLM V1's scheduler as a deterministic state machine, driven step by step.

The rules are in `foretell.kernel`; this gives its arrays names. With `config.async_scheduling` two
steps may be in flight, otherwise one.
"""

from collections import deque
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from foretell.engine.arena import Arena
from foretell.engine.arrays import new_rows, new_state, steps_in_flight
from foretell.engine.batch import Batch, Outcome
from foretell.engine.sequence import Sequence
from foretell.kernel import layout, output, queues, scheduling
from foretell.kernel.layout import NONE, State
from foretell.model import BatchShape, EngineConfig

_FIRST_CAPACITY = 64
_SHAPE = ("prefill_seqs", "prefill_tokens", "prefill_pairs", "decode_seqs", "decode_pairs")


class Twin:
    """The scheduler's whole state: who runs, who waits, which blocks are free."""

    def __init__(self, config: EngineConfig, *, prefix_cache: bool = False) -> None:
        """`prefix_cache`: blocks of equal content are found again, as far as content is known.

        Without it every admission computes its whole prompt.
        """
        self.config = config
        self.max_steps_in_flight = steps_in_flight(config)
        self._state = new_state(config, _FIRST_CAPACITY, knows_content=prefix_cache)
        self._arena = Arena(config.block_size_tokens) if prefix_cache else None
        self._members: list[Sequence | None] = [None] * _FIRST_CAPACITY
        self._unused = list(range(_FIRST_CAPACITY))[::-1]
        # Slots of the ended, and how many steps must be complete before nothing refers to them.
        self._ended: deque[tuple[int, Sequence]] = deque()
        self._scheduled_steps = 0
        self._completed_steps = 0
        self._spare: list[layout.Batch] = []

    @classmethod
    def adopt(
        cls,
        config: EngineConfig,
        state: State,
        names: Mapping[int, str],
        in_flight: Iterable[layout.Batch],
    ) -> tuple["Twin", list[Batch]]:
        """A twin that goes on from `state`, and its steps `in_flight` for `complete`.

        `names` are the request ids of the slots in use.
        """
        twin = cls(config)
        capacity = len(state.sequences)
        twin._state = state
        twin._members = [None] * capacity
        for slot, request_id in names.items():
            twin._members[slot] = Sequence.at(request_id, state.sequences[slot], slot)
        twin._unused = [slot for slot in range(capacity)[::-1] if slot not in names]
        batches = [twin._batch(arrays) for arrays in in_flight]
        twin._scheduled_steps = len(batches)
        return twin, batches

    @property
    def running(self) -> list[Sequence]:
        """In order of admission."""
        return self._named(self._state.running[: int(self._state.engine["running"])])

    @property
    def waiting(self) -> list[Sequence]:
        """In the order in which they will be admitted."""
        result, slot = [], int(self._state.engine["head"])
        while slot != NONE:
            seq = self._member(slot)
            result.append(seq)
            slot = int(seq.row["next"])
        return result

    @property
    def free_blocks(self) -> int:
        """KV blocks that no sequence holds; with prefix caching some may be hit."""
        return int(self._state.engine["free"])

    @property
    def idle(self) -> bool:
        """Neither running nor waiting requests."""
        return not (self._state.engine["running"] or self._state.engine["waiting"])

    def add(self, seq: Sequence) -> None:
        """A new request joins the waiting queue."""
        if not self._unused:
            self._reserve(max(_FIRST_CAPACITY, 2 * len(self._members)))
        slot = self._unused.pop()
        rows = self._state.sequences
        rows[slot] = seq.row
        seq.slot, seq.row = slot, rows[slot]
        self._members[slot] = seq
        if self._arena is not None:
            self._state = self._arena.place(self._state, seq)
        queues.enqueue(self._state, slot)

    def abort(self, request_id: str) -> bool:
        """Drop every sequence of `request_id`; False when there is none."""
        found = [
            seq
            for seq in self._members
            if seq is not None and seq.request_id == request_id and not seq.ended
        ]
        for seq in found:
            output.abort(self._state, seq.slot)
            self._ended.append((self._scheduled_steps, seq))
        return bool(found)

    def schedule(self) -> Batch | None:
        """Choose the next step's tokens, or None when nothing can change.

        A batch may be empty when all it did was preempt. No more than `max_steps_in_flight`
        batches may be incomplete.
        """
        self._forget_ended()
        arrays = self._spare.pop() if self._spare else layout.new_batch(len(self._members))
        if not scheduling.schedule(self._state, arrays):
            self._spare.append(arrays)
            return None
        self._scheduled_steps += 1
        return self._batch(arrays)

    def complete(self, batch: Batch, now_s: float = 0.0) -> Outcome:
        """Apply a step's outputs: one token for every sequence whose KV has caught up.

        Batches are completed in the order in which they were scheduled, each once.
        """
        arrays = batch.arrays
        output.complete(self._state, arrays, now_s)
        self._completed_steps += 1
        sampled, finished = self._listed(arrays, "sampled"), self._listed(arrays, "finished")
        self._ended.extend((self._scheduled_steps, seq) for seq in finished)
        if len(arrays.entries) == len(self._members):
            self._spare.append(arrays)
        return Outcome(sampled, finished)

    def check(self) -> None:
        """Blocks are conserved and limits kept, counted anew; a violation is a bug in the twin."""
        output.check(self._state)

    def _batch(self, arrays: layout.Batch) -> Batch:
        counts = arrays.counts
        count = int(counts["scheduled"])
        tokens = arrays.entries["tokens"][:count].tolist()
        scheduled = self._named(arrays.entries["slot"][:count])
        return Batch(
            list(zip(scheduled, tokens, strict=True)),
            self._listed(arrays, "admitted"),
            self._listed(arrays, "preempted"),
            BatchShape(*(int(counts[name]) for name in _SHAPE)),
            arrays,
        )

    def _listed(self, arrays: layout.Batch, name: str) -> list[Sequence]:
        return self._named(arrays.entries[name][: int(arrays.counts[name])])

    def _member(self, slot: int) -> Sequence:
        seq = self._members[slot]
        assert seq is not None, "a slot in use has no sequence"
        return seq

    def _named(self, slots: NDArray[np.int32]) -> list[Sequence]:
        return [self._member(slot) for slot in slots.tolist()]

    def _forget_ended(self) -> None:
        """Free the slots of sequences that have ended and that no step in flight holds."""
        ended = self._ended
        while ended and ended[0][0] <= self._completed_steps:
            _, seq = ended.popleft()
            slot, seq.row, seq.slot = seq.slot, seq.row.copy(), NONE
            self._members[slot] = None
            self._state.sequences[slot] = new_rows(1)[0]
            self._unused.append(slot)

    def _reserve(self, capacity: int) -> None:
        """Room for `capacity` sequences."""
        known, rows, running = len(self._members), new_rows(capacity), np.zeros(capacity, np.int32)
        rows[:known] = self._state.sequences
        running[:known] = self._state.running
        self._state = self._state._replace(sequences=rows, running=running)
        for slot, seq in enumerate(self._members):
            if seq is not None:
                seq.row = rows[slot]
        self._members.extend([None] * (capacity - known))
        self._unused.extend(range(known, capacity)[::-1])
        self._spare.clear()  # too small
