"""vLLM V1's scheduler as a deterministic state machine.

The rules are in `foretell.kernel`; this gives its arrays names. A twin keeps its own steps in
flight: two with `config.async_scheduling`, otherwise one. It is driven step by step with `schedule`
and `complete`, or in time by `engine.table`, always through `kernel.live`.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import fields
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.engine.arena import Arena
from foretell.engine.arrays import BLANK, copy_of, new_rows, new_state, steps_in_flight
from foretell.engine.batch import FreeBlocks, Made, StepBatch, StepOutcome
from foretell.engine.inputs import Inputs
from foretell.engine.questions import key_of
from foretell.engine.sequence import Sequence
from foretell.kernel.compiled import abort_sequence, check, enqueue, limited
from foretell.kernel.layout import ENTRY, NONE, Record, State
from foretell.kernel.live import BELIEF, LIVE, Live, advance, count_free, run_steps
from foretell.kernel.step_time import StepTime
from foretell.latency.linear import LinearStepTime
from foretell.length.distribution import Row
from foretell.model import BatchShape, CachedInput, EncoderInput, EngineConfig

_FIRST_CAPACITY = 64
_SHAPE = tuple(field.name for field in fields(BatchShape))
_MOST_AT_ONCE = 256  # steps of one `Twin.run`
_UNTIMED = LinearStepTime((1.0, 0.0, 0.0, 0.0, 0.0, 0.0)).packed()
"""The step-time model where the caller keeps the time; its values do not matter."""


class Twin:
    """The scheduler's whole state: running and waiting sequences, and free blocks."""

    def __init__(self, config: EngineConfig, *, prefix_cache: bool = False) -> None:
        """With `prefix_cache`, cached blocks are found by content, where the content is known.

        Without it every admission computes its whole prompt.
        """
        self.config = config
        self.max_steps_in_flight = steps_in_flight(config)
        state = new_state(config, _FIRST_CAPACITY, knows_content=prefix_cache)
        self._records = np.zeros(1, LIVE)
        self._records["at"]["engine"] = state.engine
        self._records["tally"]["until_s"] = inf
        self.engine: Record = self._records["at"]["engine"][0]
        """The record of `kernel.layout.ENGINE`."""
        self._clock: Record = self._records["at"]["clock"][0]
        self._tally: Record = self._records["tally"][0]
        self._counts = [self._records["at"][name][0] for name in ("older", "newer")]
        self._outcome = np.zeros(2, np.int64)
        self._shapes = np.zeros((_MOST_AT_ONCE, len(_SHAPE)), np.int64)
        self.max_num_seqs = int(self.engine["max_num_seqs"])
        self.live = Live(
            self._records,
            *state[1:],
            np.zeros(_FIRST_CAPACITY, ENTRY),
            np.zeros(_FIRST_CAPACITY, ENTRY),
            np.zeros(_FIRST_CAPACITY, BELIEF),
        )
        """The engine's arrays. The tuple is replaced when one of its arrays is."""
        self._arena = Arena(config) if prefix_cache else None
        self._inputs = Inputs()
        self._members: list[Sequence | None] = [None] * _FIRST_CAPACITY
        self._unused = list(range(_FIRST_CAPACITY))[::-1]
        # Ended sequences, each with the number of completed steps from which its slot is free.
        self._ended: deque[tuple[int, Sequence]] = deque()

    @classmethod
    def adopt(
        cls,
        config: EngineConfig,
        records: Record,
        sequences: NDArray[np.void],
        entries: NDArray[np.void],
        inputs: NDArray[np.void],
        names: Mapping[int, str],
        contents: Mapping[int, int],
    ) -> tuple["Twin", list[StepBatch]]:
        """Return a twin that continues from a state, and its steps in flight, oldest first.

        `records` is a record of `kernel.forecasts.RECORDS`; the running sequences are in the first
        slots. `entries` are the entries of the two batches. `names` maps the slots in use to
        request ids, `contents` the contents of multimodal inputs to their rows in `inputs`.
        """
        twin, capacity = cls(config), len(sequences)
        twin._records["at"], twin._records["tally"]["told"] = records, 1
        twin.live = twin.live._replace(
            sequences=sequences,
            running=np.arange(capacity, dtype=np.int32),
            older=entries[0],
            newer=entries[1],
            inputs=inputs,
            beliefs=np.zeros(capacity, BELIEF),
        )
        twin._inputs = Inputs(contents, len(inputs))
        twin._members = [None] * capacity
        for slot, request_id in names.items():
            twin._members[slot] = Sequence.at(request_id, sequences[slot], slot)
        twin._unused = [slot for slot in range(capacity)[::-1] if slot not in names]
        oldest, in_flight = int(twin._clock["oldest"]), twin.in_flight
        twin._tally["scheduled"] = in_flight
        return twin, [twin._batch((oldest + i) % 2) for i in range(in_flight)]

    def limit_step(self, tokens: int) -> None:
        """Limit a step to `tokens` tokens. 0 restores the configured limit."""
        most = self.config.max_num_scheduled_tokens
        self.engine["max_num_scheduled_tokens"] = min(tokens, most) or most

    def expect_online(self, ttft_s: float, usual_blocks: float) -> None:
        """Set what a co-scheduling engine expects of online requests, as in snapshots.

        `ttft_s` is `EngineSnapshot.online_ttft_s`, `usual_blocks` its `usual_online_blocks`.
        """
        self.engine["online_ttft_s"], self.engine["usual_online_blocks"] = ttft_s, usual_blocks

    @property
    def expected_online(self) -> tuple[float, float]:
        """The values of `expect_online`; requests added since may have lowered the TTFT."""
        return float(self.engine["online_ttft_s"]), float(self.engine["usual_online_blocks"])

    def set_length(self, slot: int, tokens: int) -> None:
        """Let a restored request end after `tokens` output tokens, within the engine's limits."""
        self.live.sequences[slot]["stop_after"] = limited(self._state, slot, tokens)

    @property
    def running(self) -> list[Sequence]:
        """The running sequences, in the order of their admission."""
        return self._named(self.live.running[: int(self.engine["running"])])

    @property
    def waiting(self) -> list[Sequence]:
        """The waiting sequences, in the order in which they will be admitted."""
        result, slot = [], int(self.engine["head"])
        while slot != NONE:
            seq = self._member(slot)
            result.append(seq)
            slot = int(seq.row["next"])
        return result

    @property
    def free_blocks(self) -> int:
        """The KV blocks that no sequence holds. With prefix caching some have cached content."""
        return int(self.engine["free"])

    @property
    def idle(self) -> bool:
        """Whether there are neither running nor waiting requests."""
        return not (self.engine["running"] or self.engine["waiting"])

    @property
    def in_flight(self) -> int:
        """The number of steps in flight."""
        return int(self._clock["in_flight"])

    @property
    def steps(self) -> int:
        """The number of steps scheduled so far."""
        return int(self._tally["scheduled"])

    @property
    def computed_tokens(self) -> int:
        """The tokens scheduled so far, including those recomputed after preemptions."""
        return int(self._tally["tokens"])

    @property
    def ends_s(self) -> float:
        """The end of the oldest step in flight, where `engine.table` keeps the time."""
        return float(self._clock["first_end_s"])

    @property
    def oldest_shape(self) -> BatchShape:
        """The shape of the oldest step in flight, which must exist."""
        return self._shape(int(self._clock["oldest"]))

    @property
    def encoder_cache(self) -> tuple[CachedInput, ...]:
        """The entries of the encoder cache, as in snapshots."""
        return self._inputs.cached(self.live)

    def encoder_inputs(self, seq: Sequence) -> tuple[EncoderInput, ...]:
        """The multimodal inputs of a sequence that was added, as in snapshots."""
        return self._inputs.held(self.live, seq)

    @property
    def capacity(self) -> int:
        """The number of slots."""
        return len(self._members)

    def add(self, seq: Sequence, length_row: Row | None = None) -> None:
        """Add a new request to the waiting queue.

        `length_row` is its predicted length distribution, for snapshots of this engine.
        """
        self._forget_ended()
        if not self._unused:
            self._reserve(max(_FIRST_CAPACITY, 2 * len(self._members)))
        slot = self._unused.pop()
        rows = self.live.sequences
        rows[slot] = seq.row
        seq.slot, seq.row = slot, rows[slot]
        self._members[slot] = seq
        if self._arena is not None:
            self.live = self._arena.place(self.live, seq)
        self.live = self._inputs.place(self.live, seq)
        if length_row is not None:
            self.live.beliefs[slot] = (length_row, key_of(seq.request_id))
        enqueue(self._state, slot)

    def abort(self, request_id: str) -> bool:
        """Drop every sequence of `request_id`; False when there is none."""
        found = [
            seq
            for seq in self._members
            if seq is not None and seq.request_id == request_id and not seq.ended
        ]
        for seq in found:
            abort_sequence(self._state, seq.slot)
            self._ended.append((self.steps, seq))
        return bool(found)

    def grammar_compiled(self, request_id: str) -> None:
        """Note that the grammar for which the sequences of `request_id` wait is compiled."""
        for seq in self._members:
            if seq is not None and seq.request_id == request_id:
                seq.row["blocked"] = 2  # WAS_PASSED_OVER in `scheduling.h`

    def expect_drafts(
        self, drafted_ratio: Iterable[float], accepted_ratio: Iterable[float]
    ) -> None:
        """Draw the counts of draft and of accepted tokens by the ratios of `EngineSnapshot`."""
        ratios = {"drafted_ratio": drafted_ratio, "accepted_ratio": accepted_ratio}
        for name, values in ratios.items():
            for place, ratio in enumerate(values):
                self.engine[name][place] = ratio

    def schedule(self, now_s: float = 0.0, model: StepTime = _UNTIMED) -> StepBatch | None:
        """Schedule the next step; None if no more may be in flight or nothing can change.

        The batch is empty if the step only preempted. `now_s` and `model` matter only if the engine
        co-schedules offline requests.
        """
        self._forget_ended()
        if not self._advance(lands=False, steps=1, now_s=now_s, model=model):
            return None
        return self._batch((int(self._clock["oldest"]) + self.in_flight + 1) % 2)

    def passes_step(self) -> None:
        """Count an iteration of the engine core in which this twin schedules no step."""
        self.engine["step_counter"] += 1

    def complete(self, batch: StepBatch, now_s: float = 0.0) -> StepOutcome:
        """Apply a step's outputs: a token for every sequence whose KV has caught up, and drafts.

        Every batch must be completed once, in the order of scheduling. `now_s` is as in `schedule`.
        """
        assert self.in_flight, "no step is in flight"
        assert batch.index == self._clock["oldest"], "an older step is in flight"
        self._advance(lands=True, steps=0, now_s=now_s)
        finished = self.ended(int(self._outcome[0]), batch.index)
        return StepOutcome(self._listed(batch.index, "sampled"), finished)

    def run(self, steps: int) -> Made:
        """Schedule and complete at most `steps` steps, one by one, up to the first that admits,
        preempts or ends a request.

        This is faster than `schedule` and `complete`, because it lists only the sequences that the
        last step admitted, preempted or ended. No step may be in flight.
        """
        assert not self.in_flight, "a step is in flight"
        self._forget_ended()
        steps = min(steps, len(self._shapes))
        most = self.config.max_num_scheduled_tokens
        made = run_steps(
            self.live, _UNTIMED, steps, most, self.max_num_seqs, self._outcome, self._shapes
        )
        index = int(self._outcome[1])
        changed = made > 0
        return Made(
            self._shapes[:made],
            self._listed(index, "admitted") if changed else [],
            self._listed(index, "preempted") if changed else [],
            self.ended(int(self._outcome[0]), index) if changed else [],
        )

    def ended(self, count: int, batch: int) -> list[Sequence]:
        """The `count` sequences that the latest step ended; `batch` is the index of its batch."""
        found = self._named(self._entries(batch)["finished"][:count])
        steps = self.steps
        self._ended.extend((steps, seq) for seq in found)
        return found

    def check(self) -> None:
        """Recount blocks and check limits; AssertionError for a violation, a bug in the twin."""
        broken = check(self._state)
        assert broken is None, broken

    def count_free_blocks(self, since_s: float, until_s: float) -> None:
        """Sum up free blocks over time from `since_s` to `until_s`."""
        self._tally["counted_s"], self._tally["until_s"] = since_s, until_s

    def free_blocks_so_far(self, now_s: float) -> FreeBlocks:
        """The free blocks summed over time up to now."""
        count_free(self.live, now_s)
        names = ("counted_for_s", "free_s", "free_squared_s")
        return FreeBlocks(*(float(self._tally[name]) for name in names))

    @property
    def _state(self) -> State:
        return State(self.engine, *self.live[1:7])

    def _advance(
        self, *, lands: bool, steps: int, now_s: float = 0.0, model: StepTime = _UNTIMED
    ) -> int:
        budget = self.config.max_num_scheduled_tokens
        return advance(
            self.live, model, now_s, lands, steps, budget, self.max_num_seqs, self._outcome
        )

    def _batch(self, index: int) -> StepBatch:
        counts, entries = self._counts[index], self._entries(index)
        count = int(counts["scheduled"])
        scheduled = self._named(entries["slot"][:count])
        return StepBatch(
            list(zip(scheduled, entries["tokens"][:count].tolist(), strict=True)),
            self._listed(index, "admitted"),
            self._listed(index, "preempted"),
            self._shape(index),
            index,
        )

    def _shape(self, batch: int) -> BatchShape:
        return BatchShape(*(int(self._counts[batch][name]) for name in _SHAPE))

    def _entries(self, batch: int) -> NDArray[np.void]:
        return self.live.newer if batch else self.live.older

    def _listed(self, batch: int, name: str) -> list[Sequence]:
        return self._named(self._entries(batch)[name][: int(self._counts[batch][name])])

    def _member(self, slot: int) -> Sequence:
        seq = self._members[slot]
        assert seq is not None, "a slot in use has no sequence"
        return seq

    def _named(self, slots: NDArray[np.int32]) -> list[Sequence]:
        return [self._member(slot) for slot in slots.tolist()]

    def _forget_ended(self) -> None:
        """Free the slots of sequences that have ended and that no step in flight holds."""
        ended = self._ended
        while ended and ended[0][0] <= self._tally["completed"]:
            _, seq = ended.popleft()
            slot, seq.row, seq.slot = seq.slot, copy_of(seq.row), NONE
            self._members[slot] = None
            self.live.sequences[slot] = BLANK
            self._unused.append(slot)

    def _reserve(self, capacity: int) -> None:
        """Make room for `capacity` sequences."""
        live, known = self.live, len(self._members)
        rows = new_rows(capacity)
        rows[:known] = live.sequences
        self.live = live._replace(
            sequences=rows,
            running=_longer(live.running, capacity),
            older=_longer(live.older, capacity),
            newer=_longer(live.newer, capacity),
            beliefs=_longer(live.beliefs, capacity),
        )
        for slot, seq in enumerate(self._members):
            if seq is not None:
                seq.row = rows[slot]
        self._members.extend([None] * (capacity - known))
        self._unused.extend(range(known, capacity)[::-1])


def _longer(rows: NDArray[Any], capacity: int) -> NDArray[Any]:
    result = np.zeros(capacity, rows.dtype)
    result[: len(rows)] = rows
    return result
