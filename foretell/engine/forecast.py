"""Runs an engine forward to see when a newcomer would get its first and its last token."""

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from foretell.engine.arrays import new_rows
from foretell.engine.restore import restore
from foretell.kernel.futures import Futures, Lengths, sample_futures
from foretell.kernel.layout import EXPECTED, Batch, new_batch, new_record
from foretell.kernel.lengths import WIDTH
from foretell.kernel.rollout import CLOCK, MARK, Roll
from foretell.kernel.step_time import StepTime
from foretell.kernel.steady import new_steady
from foretell.latency.linear import StepTimeModel
from foretell.model import EngineConfig, EngineSnapshot, RequestSpec

LengthRow = Seq[float]
"""`kernel.lengths.WIDTH` numbers that describe how long an output may be."""
MARKS = 8
"""Equally likely lengths of a newcomer whose own is not certain."""
_SEED = 0


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request on its way to the engine: it joins the queue at `at_unix_s`."""

    at_unix_s: float
    request: RequestSpec
    length_row: LengthRow


@dataclass(frozen=True, slots=True)
class Forecast:
    """Seconds from the moment of prediction; infinite when the request could never run.

    Of each latency several equally likely values, in ascending order.
    """

    ttft_s: tuple[float, ...]
    e2e_s: tuple[float, ...]
    output_tokens: float
    """The mean that `e2e_s` was predicted with."""
    preemptions: float
    """Of any request on the instance until the newcomer ends; mean."""


class Rollouts(NamedTuple):
    """One prediction's run of the twin, all arrays."""

    start: Roll
    work: Roll
    model: StepTime
    lengths: Lengths
    futures: Futures

    def run(self) -> None:
        """Fill `futures`; again does the same again."""
        sample_futures(self.start, self.work, self.model, self.lengths, _SEED, self.futures)


class Forecaster:
    """Forecasts from one snapshot; what they have in common is prepared once."""

    def __init__(self, snapshot: EngineSnapshot, length_rows: Seq[LengthRow]) -> None:
        """`length_rows` is for the running and then the waiting requests."""
        self._snapshot = snapshot
        self._restored = restore(snapshot)
        self._rows = np.array(length_rows, np.float64).reshape(-1, WIDTH)

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
            ttft_s=_from(now_unix_s, futures.first_token_s),
            e2e_s=_from(now_unix_s, futures.last_token_s.ravel()),
            output_tokens=float(rollouts.work.marks["tokens"].mean()),
            preemptions=float(futures.preemptions.mean()),
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
        """All that is said before the twin runs.

        Lengths are drawn `samples` times; where all are certain, one rollout says everything.
        `every_step_published` says that silence means the step in flight is still running; without
        it, a step that should have ended is taken to have ended and the twin is rolled on to now.
        """
        start, lengths = self._start([*pending, newcomer])
        self._set_clock(start, step_time, now_unix_s, every_step_published)
        if not _uncertain(lengths.rows):
            samples = 1
        marks = MARKS if _uncertain(lengths.rows[start.watched[:1]]) else 1
        work = _like(start, marks)
        futures = Futures(
            np.empty((samples, len(start.state.sequences)), np.int64),
            np.empty(samples),
            np.empty((samples, marks)),
            np.empty(samples, np.int64),
        )
        return Rollouts(start, work, step_time.packed(), lengths, futures)

    def _start(self, coming: Seq[PendingRequest]) -> tuple[Roll, Lengths]:
        """The engine with the requests that are `coming`, the newcomer last of them."""
        restored, config = self._restored, self._snapshot.config
        known = len(restored.requests)
        each = [p.request.sequences for p in coming]
        total = known + sum(each)
        rows, running = new_rows(total), np.zeros(total, np.int32)
        rows[:known] = restored.state.sequences
        running[:known] = restored.state.running
        lengths = Lengths(
            np.empty((total, WIDTH)), np.zeros(total, np.int64), np.empty(total, np.int64)
        )
        if known:
            lengths.rows[:known] = self._rows
            lengths.generated[:known] = restored.state.sequences["output"]
            lengths.keys[:known] = restored.keys
        slot = known
        for p, count in zip(coming, each, strict=True):
            _fill_expected(rows[slot : slot + count], p, config)
            lengths.rows[slot : slot + count] = p.length_row
            key = crc32(p.request.request_id.encode())
            lengths.keys[slot : slot + count] = np.arange(key, key + count)
            slot += count
        new = np.arange(known, total, dtype=np.int32)
        state = restored.state._replace(sequences=rows, running=running)
        return Roll(
            state,
            _two(restored.batches, total),
            new_record(CLOCK),
            arrivals=new[np.argsort(rows["arrival_s"][known:], kind="stable")],
            watched=new[total - known - each[-1] :],
            marks=np.zeros(0, MARK),
            steady=new_steady(0, config.block_size_tokens),
        ), lengths

    def _set_clock(
        self, start: Roll, step_time: StepTimeModel, now_unix_s: float, every_step: bool
    ) -> None:
        """When the steps in flight end, by their start and what they should take."""
        snapshot, clock = self._snapshot, start.clock
        clock["now_s"] = now_unix_s if every_step else snapshot.taken_unix_s
        clock["in_flight"] = in_flight = len(self._restored.batches)
        steps = snapshot.steps_in_flight
        end_s = steps[0].started_unix_s if steps else snapshot.taken_unix_s
        ends = []
        for step in steps:
            end_s += step_time.step_s(step.shape)
            if every_step:
                end_s = max(end_s, now_unix_s)
            ends.append(end_s)
        ends = ends or [clock["now_s"]]
        clock["first_end_s"] = ends[0] if in_flight > 1 else ends[-1]
        clock["last_end_s"] = ends[-1]


def _fill_expected(rows: NDArray[np.void], pending: PendingRequest, config: EngineConfig) -> None:
    request = pending.request
    rows["status"] = EXPECTED
    rows["arrival_s"] = pending.at_unix_s
    rows["priority"] = request.priority
    rows["prompt"] = min(request.prompt_tokens, config.max_model_len - 1)
    rows["max_tokens"] = min(request.max_tokens, config.max_model_len)
    rows["hits"] = request.cached_tokens // config.block_size_tokens


def _uncertain(rows: NDArray[np.float64]) -> bool:
    """Whether any of the lengths may turn out one way or another."""
    return bool((rows[:, 0] != rows[:, -2]).any() or rows[:, -1].any())


def _two(batches: Seq[Batch], capacity: int) -> tuple[Batch, Batch]:
    """A rollout's two batches, with those in flight first."""
    result = new_batch(capacity), new_batch(capacity)
    for target, source in zip(result, batches, strict=False):
        target.counts["scheduled"] = len(source.entries)
        target.entries[: len(source.entries)] = source.entries
    return result


def _like(start: Roll, marks: int) -> Roll:
    """Room for rollouts from `start`."""
    capacity, state = len(start.state.sequences), start.state
    state = state._replace(
        engine=state.engine.copy(),
        sequences=np.empty_like(state.sequences),
        running=np.empty_like(state.running),
    )
    batches = new_batch(capacity), new_batch(capacity)
    return start._replace(
        state=state,
        batches=batches,
        clock=start.clock.copy(),
        marks=np.zeros(marks, MARK),
        steady=new_steady(capacity, len(start.steady.opening)),
    )


def _from(
    now_unix_s: float, instants: "np.ndarray[tuple[int], np.dtype[np.float64]]"
) -> tuple[float, ...]:
    return tuple(sorted(max(0.0, t - now_unix_s) for t in instants.tolist()))


def mean(values: Seq[float]) -> float:
    """Of equally likely values; infinite if one of them is."""
    return math.fsum(values) / len(values) if math.isfinite(values[-1]) else math.inf


def quantile(values: Seq[float], level: float) -> float:
    """Of equally likely values in ascending order: linear between the middles of their shares."""
    place = min(max(level * len(values) - 0.5, 0.0), len(values) - 1.0)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    if place == low or math.isinf(values[high]):
        return values[low] if place == low else math.inf
    return values[low] + (values[high] - values[low]) * (place - low)
