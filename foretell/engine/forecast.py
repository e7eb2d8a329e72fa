"""Runs a twin forward to see when a newcomer would get its first and its last token."""

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from foretell.engine.restore import ExpectedOutput, restore, stop_after
from foretell.engine.sequence import Sequence
from foretell.engine.twin import Twin
from foretell.latency.linear import StepTimeModel
from foretell.model import BatchShape, EngineConfig, EngineSnapshot, RequestSpec

MAX_ROUNDS = 200_000
"""Scheduling rounds after which a forecast gives up; a bound, not a tuning knob."""


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request on its way to the engine: it joins the queue at `at_unix_s`."""

    at_unix_s: float
    request: RequestSpec


@dataclass(frozen=True, slots=True)
class Forecast:
    """Seconds from the moment of prediction; infinite when the request could never run."""

    ttft_s: float
    e2e_s: float
    tpot_s: float
    preemptions: int
    """Of any request on the instance until the newcomer ends."""


def forecast(
    snapshot: EngineSnapshot,
    step_time: StepTimeModel,
    newcomer: RequestSpec,
    now_unix_s: float,
    expected_output: ExpectedOutput,
    *,
    pending: Seq[PendingRequest] = (),
    dispatch_delay_s: float = 0.0,
    every_step_published: bool = True,
) -> Forecast:
    """What the engine will do with `newcomer`, dispatched now, behind all it has and is sent.

    `every_step_published` says that silence means the step in flight is still running; without
    it, a step that should have ended is taken to have ended and the twin is rolled on to now.
    """
    twin, batch = restore(snapshot, expected_output)
    clock = _end_of_step_in_flight(snapshot, step_time, now_unix_s, every_step_published)
    twin.complete(batch)
    arrivals = sorted(
        [*pending, PendingRequest(now_unix_s + dispatch_delay_s, newcomer)],
        key=lambda p: p.at_unix_s,
    )
    run = _Run(twin, step_time, clock, newcomer.request_id, arrivals)
    run.to_the_end()
    return run.result(now_unix_s)


def _end_of_step_in_flight(
    snapshot: EngineSnapshot, step_time: StepTimeModel, now_unix_s: float, every_step: bool
) -> float:
    if not snapshot.steps_in_flight:
        return snapshot.taken_unix_s
    end = snapshot.steps_in_flight[0].started_unix_s
    for step in snapshot.steps_in_flight:
        end += step_time.step_s(step.shape)
    return max(end, now_unix_s) if every_step else end


def sequences_of(request: RequestSpec, config: EngineConfig, at_s: float) -> list[Sequence]:
    """The sequences an engine will run for `request`."""
    seq = Sequence(
        request_id=request.request_id,
        prompt_tokens=min(request.prompt_tokens, config.max_model_len - 1),
        stop_after=0,
        max_tokens=request.max_tokens,
        arrival_s=at_s,
        priority=request.priority,
    )
    seq.stop_after = stop_after(seq, config, request.length.expected_tokens)
    return [replace(seq) for _ in range(request.sequences)]


class _Run:
    """One roll forward; `to_the_end` runs until the newcomer's last sequence has finished."""

    def __init__(
        self,
        twin: Twin,
        step_time: StepTimeModel,
        clock: float,
        newcomer_id: str,
        arrivals: list[PendingRequest],
    ) -> None:
        self.twin = twin
        self.step_time = step_time
        self.clock = clock
        self.newcomer_id = newcomer_id
        self.arrivals = arrivals
        self.next_arrival = 0
        self.open = 0  # newcomer's sequences that have joined and not finished
        self.joined = False
        self.tokens = 0
        self.preemptions = 0
        self.first_token_at = math.inf
        self.last_token_at = math.inf

    def to_the_end(self) -> None:
        for _ in range(MAX_ROUNDS):
            self._admit_arrivals()
            if self.joined and not self.open:
                return
            if not self._fast_forward() and not self._step():
                return

    def _admit_arrivals(self) -> None:
        while self.next_arrival < len(self.arrivals):
            pending = self.arrivals[self.next_arrival]
            if pending.at_unix_s > self.clock:
                return
            self.next_arrival += 1
            sequences = sequences_of(pending.request, self.twin.config, pending.at_unix_s)
            for seq in sequences:
                self.twin.add(seq)
            if pending.request.request_id == self.newcomer_id:
                self.open = len(sequences)
                self.tokens = max(seq.stop_after for seq in sequences)
                self.joined = True

    def _fast_forward(self) -> bool:
        """Take a run of identical decode steps at once; False when the next step may differ."""
        steps, shape = self.twin.decode_run(MAX_ROUNDS)
        if not steps:
            return False
        if self.next_arrival < len(self.arrivals):
            at_unix_s = self.arrivals[self.next_arrival].at_unix_s
            steps = self._steps_until(at_unix_s, shape, steps)
        self.clock += self.step_time.decode_run_s(shape, steps)
        self._note_finished(self.twin.advance_decode(steps))
        return True

    def _steps_until(self, at_unix_s: float, shape: BatchShape, most: int) -> int:
        """Fewest steps, up to `most`, after which the clock has reached `at_unix_s`."""
        low, high = 1, most
        while low < high:
            middle = (low + high) // 2
            if self.clock + self.step_time.decode_run_s(shape, middle) >= at_unix_s:
                high = middle
            else:
                low = middle + 1
        return low

    def _step(self) -> bool:
        """One scheduling round; False when nothing can ever run again."""
        batch = self.twin.schedule()
        if batch is None:
            if self.next_arrival >= len(self.arrivals):
                return False
            self.clock = max(self.clock, self.arrivals[self.next_arrival].at_unix_s)
            return True
        self.preemptions += len(batch.preempted) if self.joined else 0
        self.clock += self.step_time.step_s(batch.shape)
        outcome = self.twin.complete(batch)
        if self.joined and self.first_token_at == math.inf:
            for seq in outcome.sampled:
                if seq.request_id == self.newcomer_id:
                    self.first_token_at = self.clock
                    break
        self._note_finished(outcome.finished)
        return True

    def _note_finished(self, finished: list[Sequence]) -> None:
        for seq in finished:
            if seq.request_id == self.newcomer_id:
                self.open -= 1
                self.last_token_at = self.clock

    def result(self, now_unix_s: float) -> Forecast:
        if self.open or not self.joined:
            return Forecast(math.inf, math.inf, math.inf, self.preemptions)
        ttft_s = max(0.0, self.first_token_at - now_unix_s)
        e2e_s = max(ttft_s, self.last_token_at - now_unix_s)
        tpot_s = (e2e_s - ttft_s) / (self.tokens - 1) if self.tokens > 1 else 0.0
        return Forecast(ttft_s, e2e_s, tpot_s, self.preemptions)
