"""The loop of vLLM's engine core, for callers that keep the time themselves.

It is that of `EngineCore.step`, or with async scheduling of `step_with_batch_queue`
(vllm/v1/engine/core.py, 0.32), and the same as that of forecasts (`loop.h`): steps are scheduled
until no more may be in flight; then the output of the oldest one is applied.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from foretell.engine.batch import StepBatch, StepOutcome
from foretell.engine.twin import Twin

RankBatches = Sequence[StepBatch | None]
"""One step of every rank; None for ranks with nothing to do."""


class EngineLoop:
    """The loop around one twin, or around data-parallel ranks that step together.

    In every iteration call `schedule`, and `apply_output` if `output_due`.
    """

    def __init__(self, twins: Sequence[Twin], in_flight: Iterable[RankBatches] = ()) -> None:
        """`in_flight`: the steps that are scheduled already, oldest first."""
        self.twins = twins
        self.output_due = False
        """Whether the oldest step must be completed before another one is scheduled."""
        # Whether the latest iteration scheduled a step or applied output, so that state changed.
        self._moved = False
        self._in_flight = deque(in_flight)
        self._to_flush = False  # vLLM schedules once more to tell its workers what has ended

    @property
    def busy(self) -> bool:
        """Whether there is something to schedule, to flush or to apply."""
        return bool(self._in_flight) or self._wants_schedule

    @property
    def waits_in_vain(self) -> bool:
        """Whether there are requests, but no iteration will schedule them by itself."""
        under_way = self._moved or self._to_flush or any(map(any, self._in_flight))
        return self._wants_schedule and not under_way

    def abort(self, request_id: str) -> bool:
        """Abort a request; False if it is not there or has already ended."""
        aborted = any(twin.abort(request_id) for twin in self.twins)
        self._to_flush |= aborted
        return aborted

    def schedule(self) -> RankBatches | None:
        """Schedule a step behind those in flight; None if there is nothing to do."""
        self._moved = False
        if not self._wants_schedule:
            self.output_due = bool(self._in_flight)
            for twin in self.twins:
                twin.passes_step()
            return None
        self._to_flush = False
        batches = [twin.schedule() for twin in self.twins]
        for twin, batch in zip(self.twins, batches, strict=True):
            if batch is None:
                twin.passes_step()
        self._moved = any(batches)
        self._in_flight.append(batches)
        goes_on = any(batch and batch.scheduled for batch in batches) or self._wants_schedule
        is_full = len(self._in_flight) == self.twins[0].max_steps_in_flight
        self.output_due = is_full or not goes_on
        return batches

    def apply_output(self) -> list[StepOutcome]:
        """Complete the oldest step in flight of each rank that had something to do."""
        oldest = zip(self.twins, self._in_flight.popleft(), strict=True)
        outcomes = [twin.complete(batch) for twin, batch in oldest if batch is not None]
        self._moved |= bool(outcomes)
        self._to_flush |= any(outcome.finished for outcome in outcomes)
        return outcomes

    @property
    def _wants_schedule(self) -> bool:
        return self._to_flush or not all(twin.idle for twin in self.twins)
