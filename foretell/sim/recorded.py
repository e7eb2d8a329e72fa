"""A recorded run through the twin: the same arrivals and true lengths, in virtual time.

What the engine loop adds to the scheduler is modelled here. With async scheduling (vLLM's default
on GPUs) a step is scheduled when the one before the last has ended, while the last still runs:
arrivals wait a step longer, and a finished request leaves its slot a step later. The host's work
hides behind the running step. Data-parallel engines that share experts step in lockstep.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from foretell.engine import Batch, Twin
from foretell.engine import Sequence as TwinSequence
from foretell.latency.linear import StepTimeModel
from foretell.latency.tables import TabularStepTime
from foretell.model import BatchShape, EngineConfig

COUNTS_EVERY_S = 0.1
"""How often vLLM's data-parallel coordinator tells the frontend the engines' loads."""
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
    arrival_s: float
    """On any clock."""
    actual: Latency | None = None


@dataclass(frozen=True, slots=True)
class ReplayConfig:
    """The engine of the run, and what surrounds it."""

    engine: EngineConfig
    async_scheduling: bool = True
    ranks: int = 1
    """Data-parallel engines behind one frontend."""
    frontend_s: float = 0.0
    """From a request's arrival to its arrival in the engine."""


def replay(
    requests: Sequence[RecordedRequest],
    config: ReplayConfig,
    step_time: StepTimeModel,
    *,
    first: int = 0,
) -> list[Latency]:
    """What the twin says of each of the `first` requests (0: of all), in the order given.

    It ends when these have; the others only keep them company. ValueError for a request that can
    never run; the engine would never answer it.
    """
    for request in requests:
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError(f"request {request.request_id} has no prompt or no output")
    return _Replay(requests, config, step_time, first or len(requests)).run()


class _Replay:
    def __init__(
        self,
        requests: Sequence[RecordedRequest],
        config: ReplayConfig,
        step_time: StepTimeModel,
        first: int,
    ) -> None:
        self.requests = requests
        self.config = config
        self.step_time = step_time
        self.wanted = first
        self.open = set(range(first))
        # The twin completes a step before it schedules the next. One more token than the request
        # wants keeps its slot taken for the step that an async engine frees it late.
        self.twins = [
            Twin(replace(config.engine, async_scheduling=False)) for _ in range(config.ranks)
        ]
        order = sorted(range(len(requests)), key=lambda i: requests[i].arrival_s)
        self.arrivals = deque((requests[i].arrival_s + config.frontend_s, i) for i in order)
        self.clock = self.arrivals[0][0] if self.arrivals else 0.0
        self.step_began = self.clock
        self.first: dict[int, float] = {}
        self.last: dict[int, float] = {}
        self.loads: list[list[int]] = [[0, 0] for _ in self.twins]
        self.counted_s = self.clock - COUNTS_EVERY_S

    def run(self) -> list[Latency]:
        for _ in range(MAX_STEPS):
            if not self.open:
                return [self._latency(i) for i in range(self.wanted)]
            if all(twin.idle for twin in self.twins):
                self.clock = self.step_began = max(self.clock, self.arrivals[0][0])
            self._admit(self.step_began if self.config.async_scheduling else self.clock)
            self._step()
        raise ValueError(f"the run did not end within {MAX_STEPS} steps")

    def _admit(self, until_s: float) -> None:
        while self.arrivals and self.arrivals[0][0] <= until_s:
            at_s, index = self.arrivals.popleft()
            request = self.requests[index]
            late = 1 if self.config.async_scheduling else 0
            seq = TwinSequence(
                request_id=str(index),
                prompt_tokens=request.prompt_tokens,
                stop_after=request.output_tokens + late,
                max_tokens=request.output_tokens + late,
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

    def _step(self) -> None:
        batches = [twin.schedule() for twin in self.twins]
        shapes = [BatchShape() if batch is None else batch.shape for batch in batches]
        if all(batch is None for batch in batches):
            if not self.arrivals and not all(twin.idle for twin in self.twins):
                raise ValueError("a recorded request does not fit the engine's KV cache")
            if self.arrivals:
                self.clock = self.step_began = max(self.clock, self.arrivals[0][0])
            return
        self.step_began = self.clock
        self.clock += self._seconds(shapes)
        for twin, batch in zip(self.twins, batches, strict=True):
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
