"""Engine steps: which are in flight, and how long the completed ones took."""

import time
from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

from foretell.model import BatchShape, Step
from foretell.services.backend.vllm.packing import FixedFields, length_first, varint
from foretell.v1 import snapshot_pb2

_MAX_IN_FLIGHT = 64  # vLLM holds 2, or one per pipeline stage
_STEP = FixedFields(snapshot_pb2.Step, "step", "started_unix_s", "duration_s")
_STEP.then(
    snapshot_pb2.Step,
    "shape",
    FixedFields(snapshot_pb2.BatchShape, *BatchShape.__dataclass_fields__),
)
_IN_FLIGHT, _COMPLETED = (
    length_first(snapshot_pb2.EngineSnapshot, name) + varint(_STEP.size)
    for name in ("steps_in_flight", "completed_steps")
)
_MAX_COMPLETED = 256  # kept while nothing is published; older ones are dropped


class Instant(NamedTuple):
    """One moment on both clocks: durations from the first, time stamps from the second."""

    monotonic_s: float
    unix_s: float

    @classmethod
    def now(cls) -> "Instant":
        return cls(time.monotonic(), time.time())

    @classmethod
    def of(cls, monotonic_s: float) -> "Instant":
        """The moment, a short time ago, at which the monotonic clock showed `monotonic_s`."""
        return cls(monotonic_s, monotonic_s + time.time() - time.monotonic())


@dataclass(slots=True)
class _InFlight:
    output: Any  # vLLM's SchedulerOutput; identity is what matches an update to its step
    step: int
    shape: BatchShape
    started: Instant


class StepTracker:
    """Measures steps from the outside: `schedule()` begins one, `update_from_output()` ends it.

    While the engine is continuously busy, a step lasts from the previous update to its own. That is
    what a request experiences, including the scheduler's time. With async scheduling it is the only
    valid measure, because a step is scheduled before its predecessor has run. After a pause, a step
    lasts from its own `schedule()`. Steps without tokens do not count.
    """

    def __init__(self) -> None:
        self._count = 0
        self._in_flight: deque[_InFlight] = deque(maxlen=_MAX_IN_FLIGHT)
        self._completed: deque[Step] = deque(maxlen=_MAX_COMPLETED)
        self._busy_since: Instant | None = None

    @property
    def in_flight(self) -> list[Step]:
        """Oldest first. The others wait for it; their start is the time of their `schedule()`."""
        return [Step(s.step, s.started.unix_s, 0.0, s.shape) for s in self._in_flight]

    def take_completed(self) -> list[Step]:
        """Steps completed since the last call, oldest first."""
        result = list(self._completed)
        self._completed.clear()
        return result

    def in_flight_packed(self) -> bytes:
        """`in_flight` as the field of a serialized snapshot."""
        return b"".join(
            _packed(_IN_FLIGHT, s.step, s.started.unix_s, 0.0, s.shape) for s in self._in_flight
        )

    def take_completed_packed(self) -> bytes:
        """`take_completed` as the field of a serialized snapshot."""
        result = b"".join(
            _packed(_COMPLETED, s.step, s.started_unix_s, s.duration_s, s.shape)
            for s in self._completed
        )
        self._completed.clear()
        return result

    def scheduled(self, output: Any, shape: BatchShape, at: Instant) -> None:
        """`schedule()`, called at `at`, has returned `output`."""
        if shape.tokens == 0:
            if not self._in_flight:
                self._busy_since = None  # nothing could run: the engine waits
            return
        started = at if self._in_flight or self._busy_since is None else self._busy_since
        self._in_flight.append(_InFlight(output, self._count, shape, started))
        self._count += 1

    def updating(self, output: Any, at: Instant) -> None:
        """`update_from_output()` is called for `output` at `at`."""
        if not self._in_flight or self._in_flight[0].output is not output:
            if not any(step.output is output for step in self._in_flight):
                return  # a step without tokens
            # Outputs are applied in order: earlier steps here were missed because a hook failed.
            while self._in_flight[0].output is not output:
                self._in_flight.popleft()
        done = self._in_flight.popleft()
        duration_s = at.monotonic_s - done.started.monotonic_s
        step = Step(done.step, done.started.unix_s, duration_s, done.shape)
        self._completed.append(step)
        self._busy_since = at
        if self._in_flight:
            self._in_flight[0].started = at

    def lost_sight(self) -> None:
        """Forget the steps in flight, and since when the engine is busy: steps were missed."""
        self._in_flight.clear()
        self._busy_since = None

    def updated(self, *, work_left: bool) -> None:
        """`update_from_output()` has returned; `work_left`: a request runs or waits."""
        if not work_left and not self._in_flight:
            self._busy_since = None


def _packed(
    before: bytes, step: int, started_unix_s: float, duration_s: float, shape: BatchShape
) -> bytes:
    """A serialized `Step`, with the tag and length `before` it."""
    return before + _STEP.pack(
        step,
        started_unix_s,
        duration_s,
        shape.prefill_seqs,
        shape.prefill_tokens,
        shape.prefill_pairs,
        shape.decode_seqs,
        shape.decode_pairs,
        shape.draft_tokens,
    )
