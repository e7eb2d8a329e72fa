"""One engine in virtual time: a twin whose steps last as long as a step-time model says."""

from foretell.engine import Batch, Outcome, Sequence, Twin
from foretell.latency.linear import StepTimeModel
from foretell.model import EngineConfig, EngineSnapshot, RequestState, Step
from foretell.model.batch import BatchShape


class InvariantError(AssertionError):
    """The simulated cluster did something that no cluster may do."""


def check(condition: bool, what: str) -> None:
    """Raise `InvariantError` unless `condition`; unlike `assert`, also under `python -O`."""
    if not condition:
        raise InvariantError(what)


class Instance:
    """Schedules, completes and tells; the caller keeps the clock. Its invariants always run."""

    def __init__(self, instance_id: str, config: EngineConfig, step_time: StepTimeModel) -> None:
        self.instance_id = instance_id
        self.config = config
        self.steps = 0
        self._twin = Twin(config)
        self._step_time = step_time
        self._batch: Batch | None = None
        self._step_started_s = 0.0
        self._predicted_tokens: dict[str, float] = {}
        self._snapshots = 0

    @property
    def in_step(self) -> bool:
        """A step is under way; newcomers wait for its end."""
        return self._batch is not None

    def deliver(self, seq: Sequence, predicted_tokens: float) -> None:
        """A request reaches the engine's queue."""
        check(seq.request_id not in self._predicted_tokens, f"{seq.request_id} delivered twice")
        self._predicted_tokens[seq.request_id] = predicted_tokens
        self._twin.add(seq)

    def start_step(self, now_s: float) -> float | None:
        """Schedule a step and return when it will end; None when there is nothing to do."""
        check(self._batch is None, f"{self.instance_id}: a step within a step")
        batch = self._twin.schedule()
        if batch is None:
            self._check_blocks()
            return None
        self._batch = batch
        self._step_started_s = now_s
        self.steps += 1
        self._check_batch(batch)
        duration_s = self._step_time.step_s(batch.shape)
        check(duration_s > 0, f"{self.instance_id}: a step of {duration_s} s")
        return now_s + duration_s

    def end_step(self) -> Outcome:
        """Apply the outputs of the step under way."""
        batch = self._batch
        if batch is None:
            raise InvariantError(f"{self.instance_id}: no step to end")
        self._batch = None
        outcome = self._twin.complete(batch)
        for seq in outcome.finished:
            check(
                self._predicted_tokens.pop(seq.request_id, None) is not None,
                f"{seq.request_id} finished but was not here",
            )
        self._check_blocks()
        return outcome

    def snapshot(self, now_s: float) -> EngineSnapshot:
        """The state as a backend would publish it."""
        self._snapshots += 1
        scheduled: dict[str, int] = {}
        steps: tuple[Step, ...] = ()
        if self._batch is not None:
            scheduled = {seq.request_id: tokens for seq, tokens in self._batch.scheduled}
            steps = (Step(self.steps, self._step_started_s, 0.0, self._batch.shape),)
        return EngineSnapshot(
            instance_id=self.instance_id,
            engine_run_id="simulated",
            sequence=self._snapshots,
            taken_unix_s=now_s,
            published_unix_s=now_s,
            config=self.config,
            free_blocks=self._twin.free_blocks,
            running=tuple(self._state(s, scheduled) for s in self._twin.running),
            waiting=tuple(self._state(s, scheduled) for s in self._twin.waiting),
            steps_in_flight=steps,
            completed_steps=(),
        )

    def check_empty(self) -> None:
        """Nothing is left behind: no request, no step, no block."""
        twin = self._twin
        check(
            not (twin.running or twin.waiting or self._batch or self._predicted_tokens),
            f"{self.instance_id}: {len(twin.running)} running and {len(twin.waiting)} waiting "
            "requests left behind",
        )
        check(
            twin.free_blocks == self.config.total_blocks,
            f"{self.instance_id}: {self.config.total_blocks - twin.free_blocks} blocks leaked",
        )

    def _state(self, seq: Sequence, scheduled: dict[str, int]) -> RequestState:
        return RequestState(
            request_id=seq.request_id,
            foretell_id=seq.request_id,
            prompt_tokens=seq.prompt_tokens,
            output_tokens=seq.output_tokens,
            computed_tokens=seq.computed_tokens,
            max_tokens=seq.max_tokens,
            arrival_unix_s=seq.arrival_s,
            priority=seq.priority,
            predicted_output_tokens=self._predicted_tokens[seq.request_id],
            scheduled_tokens=scheduled.get(seq.request_id, 0),
            preemptions=seq.preemptions,
        )

    def _check_batch(self, batch: Batch) -> None:
        """The token budget, the sequence limit, and a shape that counts what is scheduled."""
        where, config = self.instance_id, self.config
        tokens = sum(count for _, count in batch.scheduled)
        shape: BatchShape = batch.shape
        check(all(count > 0 for _, count in batch.scheduled), f"{where}: scheduled no tokens")
        check(tokens <= config.max_num_scheduled_tokens, f"{where}: {tokens} tokens over budget")
        check(tokens == shape.tokens, f"{where}: {shape} does not hold {tokens} tokens")
        check(
            len(batch.scheduled) <= len(self._twin.running) <= config.max_num_seqs,
            f"{where}: {len(self._twin.running)} sequences run",
        )
        for seq in batch.preempted:
            check(seq in self._twin.waiting, f"{where}: preempted {seq.request_id} does not wait")
        self._check_blocks()

    def _check_blocks(self) -> None:
        """Every KV block is free or held once, and each sequence holds what it has computed."""
        twin, where = self._twin, self.instance_id
        held = sum(seq.blocks for seq in twin.running)
        check(twin.free_blocks >= 0, f"{where}: {twin.free_blocks} free blocks")
        check(
            held + twin.free_blocks == self.config.total_blocks,
            f"{where}: {held} held + {twin.free_blocks} free != {self.config.total_blocks} blocks",
        )
        for seq in twin.running:
            check(
                seq.blocks >= self.config.blocks_for(seq.computed_tokens),
                f"{where}: {seq.request_id} has computed beyond its blocks",
            )
        check(all(seq.blocks == 0 for seq in twin.waiting), f"{where}: a waiting request has KV")
