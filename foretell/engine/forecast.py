"""Runs an engine forward to see when a newcomer would get its first and its last token."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from foretell.engine.restore import restore
from foretell.kernel.futures import RECORDS, Futures, Lengths, Room, Start, sample_futures
from foretell.kernel.layout import ENTRY, EXPECTED, SEQUENCE, new_batch
from foretell.kernel.lengths import WIDTH
from foretell.kernel.rollout import MARK
from foretell.kernel.step_time import StepTime
from foretell.latency.linear import StepTimeModel
from foretell.model import EngineSnapshot, RequestSpec

LengthRow = Seq[float]
"""`kernel.lengths.WIDTH` numbers that describe how long an output may be."""
Values = NDArray[np.float64] | list[float]
MARKS = 8
"""Equally likely lengths of a newcomer whose own is not certain."""
SEED = 0
"""Of all rollouts: whoever asks, and whatever is added, requests keep their lengths."""
_SPARE = 80
"""Rows for requests to come, at first."""


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request on its way to the engine: it joins the queue at `at_unix_s`."""

    at_unix_s: float
    request: RequestSpec
    length_row: LengthRow
    every_s: float = 0.0
    """From one of its sequences' arrival to the next one's."""


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """Seconds from the moment of prediction; infinite when the request could never run.

    Of each latency several equally likely values, in ascending order.
    """

    ttft_s: Values
    e2e_s: Values
    output_tokens: float
    """The mean that `e2e_s` was predicted with."""
    preemptions: float
    """Of any request on the instance until the newcomer ends."""
    steps: int
    """Of the engine until the newcomer has ended with its longest length."""


class Rollouts(NamedTuple):
    """One prediction's run of the twin, all arrays."""

    start: Start
    room: Room
    model: StepTime
    lengths: Lengths
    futures: Futures

    def run(self) -> None:
        """Fill `futures`; again does the same again."""
        sample_futures(self.start, self.room, self.model, self.lengths, SEED, self.futures)


class Forecaster:
    """Forecasts from one snapshot; what they have in common is prepared once."""

    def __init__(self, snapshot: EngineSnapshot, length_rows: Seq[LengthRow]) -> None:
        """`length_rows` is for the running and then the waiting requests."""
        self._snapshot = snapshot
        self._length_rows = length_rows
        self._certain = all(map(_is_certain, length_rows))
        self._make_room(_SPARE)

    def _make_room(self, spare: int) -> None:
        """Arrays of the engine's state, with `spare` rows for requests that are coming."""
        self._spare = spare
        self._restored = restored = restore(self._snapshot, spare)
        known, capacity = restored.requests, restored.requests + spare
        self._lengths = Lengths(
            np.empty((capacity, WIDTH)), np.zeros(capacity, np.int64), np.empty(capacity, np.int64)
        )
        figures = np.fromiter(chain.from_iterable(self._length_rows), np.float64, known * WIDTH)
        self._lengths.rows[:known] = figures.reshape(known, WIDTH)
        self._lengths.generated[:known] = restored.state.sequences["output"][:known]
        self._lengths.keys[:known] = restored.keys
        state, batches = restored.state, restored.batches
        records = np.zeros(1, RECORDS)
        records["engine"] = state.engine
        idle = new_batch(0)
        older, newer, *_ = *batches, idle, idle
        records["older"], records["newer"] = older.counts, newer.counts
        nobody = np.zeros(0, np.int32)
        self._start = Start(
            records,
            state.sequences,
            state.running,
            state.blocks,
            state.places,
            state.first_with,
            older.entries,
            newer.entries,
            arrivals=nobody,
            watched=nobody,
        )
        self.room = Room(
            np.empty(1, RECORDS),
            np.empty(capacity, SEQUENCE),
            np.empty(capacity, np.int32),
            np.empty(capacity, ENTRY),
            np.empty(capacity, ENTRY),
            np.empty(capacity, np.int32),
            np.zeros(self._snapshot.config.block_size_tokens, np.int32),
        )

    def forecast(
        self,
        step_time: StepTimeModel,
        newcomer: PendingRequest,
        now_unix_s: float,
        *,
        samples: int,
        pending: Seq[PendingRequest] = (),
        every_step_published: bool = True,
    ) -> Forecast:
        """What the engine will do with `newcomer`, behind all it has and is sent.

        The arguments are those of `prepare`.
        """
        rollouts = self.prepare(
            step_time,
            newcomer,
            now_unix_s,
            samples=samples,
            pending=pending,
            every_step_published=every_step_published,
        )
        rollouts.run()
        futures = rollouts.futures
        return Forecast(
            ttft_s=_ascending(now_unix_s, futures.first_token_s),
            e2e_s=_ascending(now_unix_s, futures.last_token_s.ravel()),
            output_tokens=float(futures.marks["tokens"].mean()),
            preemptions=float(futures.counts[0]),
            steps=int(futures.counts[1]),
        )

    def prepare(
        self,
        step_time: StepTimeModel,
        newcomer: PendingRequest,
        now_unix_s: float,
        *,
        samples: int,
        pending: Seq[PendingRequest] = (),
        every_step_published: bool = True,
    ) -> Rollouts:
        """All that is said before the twin runs; good until something else is prepared.

        Lengths are drawn `samples` times; where all are certain, one rollout says everything.
        `every_step_published` says that silence means the step in flight is still running; without
        it, a step that should have ended is taken to have ended and the twin is rolled on to now.
        """
        coming = [*pending, newcomer]
        start, lengths = self.begin(step_time, coming, now_unix_s, every_step_published)
        samples = self.samples_for(coming, samples)
        marks = 1 if _is_certain(newcomer.length_row) else MARKS
        futures = Futures(
            np.empty((samples, len(start.sequences)), np.int64),
            np.empty(marks, MARK),
            np.empty(samples),
            np.empty((samples, marks)),
            np.empty(2, np.int64),
        )
        return Rollouts(start, self.room, step_time.packed(), lengths, futures)

    @property
    def requests(self) -> int:
        """Of the snapshot: they have the first slots."""
        return self._restored.requests

    def begin(
        self,
        step_time: StepTimeModel,
        coming: Seq[PendingRequest],
        now_unix_s: float,
        every_step_published: bool,
    ) -> tuple[Start, Lengths]:
        """Where rollouts start; good until the next call. The last of `coming` is watched."""
        start, lengths = self._with(coming)
        self._set_clock(start, step_time, now_unix_s, every_step_published)
        return start, lengths

    def samples_for(self, coming: Seq[PendingRequest], samples: int) -> int:
        """How many rollouts say all that `samples` would: where all lengths are certain, one."""
        certain = self._certain and all(_is_certain(p.length_row) for p in coming)
        return 1 if certain else samples

    def _with(self, coming: Seq[PendingRequest]) -> tuple[Start, Lengths]:
        """The engine with the requests that are `coming`, the last of them watched."""
        count = sum(p.request.sequences for p in coming)
        if count > self._spare:
            self._make_room(2 * count)
        known = begin = end = self._restored.requests
        for p in coming:
            begin, end = end, end + p.request.sequences
            self._expect(slice(begin, end), p)
        rows = self._start.sequences[:end]
        order = np.argsort(rows["arrival_s"][known:], kind="stable")
        lengths = self._lengths
        start = self._start._replace(
            sequences=rows,
            arrivals=(known + order).astype(np.int32),
            watched=np.arange(begin, end, dtype=np.int32),
        )
        return start, Lengths(lengths.rows[:end], lengths.generated[:end], lengths.keys[:end])

    def _expect(self, slots: slice, pending: PendingRequest) -> None:
        """`slots` are for the sequences of `pending`: all that differs from a blank row."""
        request, config = pending.request, self._snapshot.config
        rows, key = self._start.sequences[slots], crc32(request.request_id.encode())
        rows["status"] = EXPECTED
        rows["priority"] = request.priority
        rows["prompt"] = min(request.prompt_tokens, config.max_model_len - 1)
        rows["max_tokens"] = min(request.max_tokens, config.max_model_len)
        rows["hits"] = request.cached_tokens // config.block_size_tokens
        self._lengths.rows[slots] = pending.length_row
        if request.sequences == 1:
            rows["arrival_s"], self._lengths.keys[slots] = pending.at_unix_s, key
        else:
            index = np.arange(request.sequences)
            rows["arrival_s"] = pending.at_unix_s + pending.every_s * index
            self._lengths.keys[slots] = key + index

    def _set_clock(
        self, start: Start, step_time: StepTimeModel, now_unix_s: float, every_step: bool
    ) -> None:
        """When the steps in flight end, by their start and what they should take."""
        snapshot, clock = self._snapshot, start.records["clock"]
        clock["now_s"] = now_s = now_unix_s if every_step else snapshot.taken_unix_s
        clock["in_flight"] = in_flight = len(self._restored.batches)
        steps = snapshot.steps_in_flight
        end_s = steps[0].started_unix_s if steps else snapshot.taken_unix_s
        ends = []
        for step in steps:
            end_s += step_time.step_s(step.shape)
            if every_step:
                end_s = max(end_s, now_unix_s)
            ends.append(end_s)
        ends = ends or [now_s]
        clock["first_end_s"] = ends[0] if in_flight > 1 else ends[-1]
        clock["last_end_s"] = ends[-1]


def _is_certain(row: LengthRow) -> bool:
    """Whether the length cannot turn out one way or another."""
    return row[0] == row[-2] and not row[-1]


def mean(values: Values) -> float:
    """Of equally likely values; infinite if one of them is."""
    # That of one is what a simulator asks for, a hundred thousand times a run.
    return float(values[0]) if len(values) == 1 else float(np.mean(values))


def quantiles(values: Values, levels: Seq[float]) -> list[float]:
    """Of equally likely values in ascending order: linear between the middles of their shares.

    Infinite between an infinite value and the one before it.
    """
    count = len(values)
    found = np.interp(levels, (np.arange(count) + 0.5) / count, values)
    found[np.isnan(found)] = np.inf  # what lies between two that are infinite
    return found.tolist()


def _ascending(now_unix_s: float, instants: NDArray[np.float64]) -> Values:
    values = np.maximum(instants - now_unix_s, 0.0)
    values.sort()
    return values
