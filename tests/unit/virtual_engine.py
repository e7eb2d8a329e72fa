"""An engine whose steps take as long as a step-time model says; the caller keeps the clock."""

from foretell.engine import Sequence, StepBatch, StepOutcome, Twin
from foretell.latency.linear import StepTimeModel
from foretell.model import EngineConfig, EngineSnapshot, RequestState, Step


class VirtualEngine:
    """Schedules and completes steps, and returns what a backend would publish."""

    def __init__(self, config: EngineConfig, step_time: StepTimeModel) -> None:
        self._config = config
        self._step_time = step_time
        self._twin = Twin(config)
        self._batch: StepBatch | None = None
        self._begun_s = 0.0
        self._steps = 0
        self._snapshots = 0

    def deliver(self, seq: Sequence) -> None:
        """Add a request to the engine's queue."""
        self._twin.add(seq)

    def start_step(self, now_s: float) -> float | None:
        """Schedule a step and return when it will end; None if there is nothing to do."""
        self._batch = self._twin.schedule()
        if self._batch is None:
            return None
        self._begun_s = now_s
        self._steps += 1
        return now_s + self._step_time.step_s(self._batch.shape)

    def end_step(self) -> StepOutcome:
        """Apply the outputs of the running step."""
        assert self._batch is not None
        batch, self._batch = self._batch, None
        return self._twin.complete(batch)

    def snapshot(self, now_s: float) -> EngineSnapshot:
        """The current state."""
        self._snapshots += 1
        scheduled: dict[str, int] = {}
        steps: tuple[Step, ...] = ()
        if self._batch is not None:
            scheduled = {seq.request_id: tokens for seq, tokens in self._batch.scheduled}
            steps = (Step(self._steps, self._begun_s, 0.0, self._batch.shape),)
        return EngineSnapshot(
            instance_id="e",
            engine_run_id="virtual",
            sequence=self._snapshots,
            taken_unix_s=now_s,
            published_unix_s=now_s,
            config=self._config,
            free_blocks=self._twin.free_blocks,
            running=tuple(_state(seq, scheduled) for seq in self._twin.running),
            waiting=tuple(_state(seq, scheduled) for seq in self._twin.waiting),
            steps_in_flight=steps,
            completed_steps=(),
        )


def _state(seq: Sequence, scheduled: dict[str, int]) -> RequestState:
    return RequestState(
        request_id=seq.request_id,
        foretell_id=seq.request_id,
        prompt_tokens=seq.prompt_tokens,
        output_tokens=seq.output_tokens,
        computed_tokens=seq.computed_tokens,
        max_tokens=seq.max_tokens,
        arrival_unix_s=seq.arrival_s,
        priority=seq.priority,
        predicted_output_tokens=float(seq.stop_after),
        scheduled_tokens=scheduled.get(seq.request_id, 0),
        preemptions=seq.preemptions,
    )
