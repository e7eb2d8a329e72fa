"""A recorded run through the twin: the same arrivals and true lengths, in virtual time.

The loop around the scheduler is that of `EngineCore.step`, or with async scheduling of
`step_with_batch_queue` (vllm/v1/engine/core.py): step k + 1 is scheduled when the output of k - 1
is applied, and begins when k ends (`foretell.kernel.loop` says the same). The host's work hides
behind the running step. Data-parallel engines that share experts step in lockstep: they schedule
together, and the slowest decides when a step ends.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from foretell.engine import Batch, Twin
from foretell.engine import Sequence as TwinSequence
from foretell.latency.linear import StepTimeModel
from foretell.latency.tables import TabularStepTime
from foretell.model import BatchShape, EngineConfig

COUNTS_EVERY_S = 0.1
"""Seconds between two reports of vLLM's data-parallel coordinator about the engines' loads."""
_WAITING_WEIGHT = 4  # of a waiting request against a running one, in the same place

MAX_STEPS = 10_000_000


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds from a request's arrival to its first and to its last token."""

    ttft_s: float
    e2e_s: float
    output_tokens: int

    @property
    def tpot_s(self) -> float:
        """Mean seconds of a token after the first; 0 where there is only one."""
        return (self.e2e_s - self.ttft_s) / max(1, self.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request of a run; `actual` is None where it did not finish."""

    request_id: str
    prompt_tokens: int
    output_tokens: int
    """Taken to be its `max_tokens`: the engine foresees the end, and wastes no token on it."""
    arrival_s: float
    """Seconds on the recording's clock, whatever its origin."""
    actual: Latency | None = None


@dataclass(frozen=True, slots=True)
class ReplayConfig:
    """The engine of the run, and what surrounds it."""

    engine: EngineConfig
    ranks: int = 1
    """Data-parallel engines behind one frontend."""
    frontend_s: float = 0.0
    """Seconds from a request's arrival to its arrival in the engine."""


def replay(
    requests: Sequence[RecordedRequest],
    config: ReplayConfig,
    step_time: StepTimeModel,
    *,
    first: int = 0,
) -> list[Latency]:
    """Replay a run; the latencies of the `first` requests (0: all), in the order given.

    It ends when these have; the others only keep them company. ValueError for a request that can
    never run; the engine would never answer it.
    """
    for request in requests:
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError(f"request {request.request_id} has no prompt or no output")
    return _Replay(requests, config, step_time, first or len(requests)).run()


@dataclass(slots=True)
class _Step:
    """A step in flight: what each rank computes in it (None: nothing), and when it ends."""

    batches: list[Batch | None]
    end_s: float


class _Replay:
    def __init__(
        self,
        requests: Sequence[RecordedRequest],
        config: ReplayConfig,
        step_time: StepTimeModel,
        first: int,
    ) -> None:
        self.requests = requests
        self.step_time = step_time
        self.wanted = first
        self.open = set(range(first))
        self.twins = [Twin(config.engine) for _ in range(config.ranks)]
        order = sorted(range(len(requests)), key=lambda i: requests[i].arrival_s)
        self.arrivals = deque((requests[i].arrival_s + config.frontend_s, i) for i in order)
        self.clock = self.arrivals[0][0] if self.arrivals else 0.0
        self.in_flight: deque[_Step] = deque()
        self.first: dict[int, float] = {}
        self.last: dict[int, float] = {}
        self.loads: list[list[int]] = [[0, 0] for _ in self.twins]
        self.counted_s = self.clock - COUNTS_EVERY_S

    def run(self) -> list[Latency]:
        for _ in range(MAX_STEPS):
            if not self.open:
                return [self._latency(i) for i in range(self.wanted)]
            self._admit()
            self._iterate()
        raise ValueError(f"the run did not end within {MAX_STEPS} steps")

    def _admit(self) -> None:
        while self.arrivals and self.arrivals[0][0] <= self.clock:
            at_s, index = self.arrivals.popleft()
            request = self.requests[index]
            seq = TwinSequence(
                request_id=str(index),
                prompt_tokens=request.prompt_tokens,
                stop_after=request.output_tokens,
                max_tokens=request.output_tokens,
                arrival_s=at_s,
            )
            self.twins[self._rank(at_s)].add(seq)

    def _rank(self, at_s: float) -> int:
        """vLLM's choice: the least loaded by counts that are up to 0.1 s old.

        `DPLBAsyncMPClient.get_core_engine_for_request` of `vllm/v1/engine/core_client.py`.
        """
        if len(self.twins) == 1:
            return 0
        if at_s >= self.counted_s + COUNTS_EVERY_S:
            self.loads = [[len(twin.waiting), len(twin.running)] for twin in self.twins]
            self.counted_s += (at_s - self.counted_s) // COUNTS_EVERY_S * COUNTS_EVERY_S
        scores = [_WAITING_WEIGHT * waiting + running for waiting, running in self.loads]
        rank = scores.index(min(scores))
        self.loads[rank][0] += 1
        return rank

    def _iterate(self) -> None:
        """One iteration of the engines' loop."""
        depth = self.twins[0].max_steps_in_flight
        if len(self.in_flight) < depth and self._schedule() and len(self.in_flight) < depth:
            return
        if self.in_flight:
            self._land()
        elif self.arrivals:
            self.clock = max(self.clock, self.arrivals[0][0])
        else:
            raise ValueError("a recorded request does not fit the engine's KV cache")

    def _schedule(self) -> bool:
        """Put the next step behind those in flight; whether it computes anything."""
        batches = [twin.schedule() for twin in self.twins]
        if all(batch is None for batch in batches):
            return False
        computes = any(batch is not None and batch.scheduled for batch in batches)
        begin_s = max(self.clock, self.in_flight[-1].end_s) if self.in_flight else self.clock
        seconds = 0.0  # of a step that only preempts, and runs no model
        if computes:
            seconds = self._seconds([BatchShape() if b is None else b.shape for b in batches])
        self.in_flight.append(_Step(batches, begin_s + seconds))
        return computes

    def _land(self) -> None:
        """The oldest step in flight ends, and its output is applied."""
        step = self.in_flight.popleft()
        self.clock = max(self.clock, step.end_s)
        for twin, batch in zip(self.twins, step.batches, strict=True):
            if batch is not None:
                self._complete(twin, batch)

    def _seconds(self, shapes: Sequence[BatchShape]) -> float:
        if len(shapes) > 1 and isinstance(self.step_time, TabularStepTime):
            return self.step_time.ranks_step_s(shapes)
        return max(self.step_time.step_s(shape) for shape in shapes)

    def _complete(self, twin: Twin, batch: Batch) -> None:
        for seq in twin.complete(batch).sampled:
            index = int(seq.request_id)
            if seq.output_tokens == 1:
                self.first[index] = self.clock
            if seq.output_tokens == self.requests[index].output_tokens:
                self.last[index] = self.clock
                self.open.discard(index)

    def _latency(self, index: int) -> Latency:
        request = self.requests[index]
        first = self.first[index] - request.arrival_s
        return Latency(first, self.last[index] - request.arrival_s, request.output_tokens)
