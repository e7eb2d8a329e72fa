"""Replays a recorded run in the twin: the same arrivals and true lengths, in virtual time.

A step of the engine's loop (`engine.loop`) begins when the previous one ends: the host's work is
hidden behind the running step. Data-parallel engines that share experts step in lockstep: they
schedule together, and the slowest decides when a step ends.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from foretell.engine import Content, Twin
from foretell.engine import Sequence as TwinSequence
from foretell.engine.content import Segment
from foretell.engine.loop import EngineLoop, RankBatches
from foretell.kernel import step_time as kernel
from foretell.latency.linear import StepTimeModel, sums
from foretell.model import BatchShape, EngineConfig

COUNTS_EVERY_S = 0.1
"""Seconds between two reports of engine loads by vLLM's data-parallel coordinator."""
_WAITING_WEIGHT = 4  # weight of a waiting request relative to a running one, as in vLLM

MAX_STEPS = 10_000_000


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds from a request's arrival to its first and to its last token."""

    ttft_s: float
    e2e_s: float
    output_tokens: int

    @property
    def tpot_s(self) -> float:
        """Mean seconds per token after the first; 0 if there is only one token."""
        return (self.e2e_s - self.ttft_s) / max(1, self.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request of a run; `actual` is None where it did not finish."""

    request_id: str
    prompt_tokens: int
    output_tokens: int
    """Also taken as its `max_tokens`: the engine foresees the end, and wastes no token on it."""
    arrival_s: float
    """Seconds on the recording's clock, with any origin."""
    actual: Latency | None = None
    prompt_token_ids: tuple[int, ...] = ()
    """The prompt if the run has it; otherwise empty: then it shares no block with any other."""


@dataclass(frozen=True, slots=True)
class ReplayConfig:
    """The engine of the run, and what surrounds it.

    With `engine.enable_prefix_caching` a prompt hits the blocks that are still cached, and a
    preempted request hits its own, including those of its answer.
    """

    engine: EngineConfig
    ranks: int = 1
    """Data-parallel engines behind one frontend."""
    frontend_s: float = 0.0
    """Seconds from a request's arrival at the frontend to its arrival in the engine."""


def replay(
    requests: Sequence[RecordedRequest],
    config: ReplayConfig,
    step_time: StepTimeModel,
    *,
    first: int = 0,
    clients: int = 0,
) -> list[Latency]:
    """Replay a run; return the latencies of the `first` requests (0: all), in the order given.

    It ends when these have ended; the others are load. With `clients`, this many requests begin at
    once, and each client sends the next one when it is answered, whatever the recorded arrivals.
    ValueError for a request that can never run; the engine would never answer it.
    """
    for request in requests:
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError(f"request {request.request_id} has no prompt or no output")
    return _Replay(requests, config, step_time, first or len(requests), clients).run()


def ranks_step_s(model: StepTimeModel, shapes: Sequence[BatchShape]) -> float:
    """Seconds that data-parallel ranks with these `shapes` take for one step together.

    Each waits for the slowest one before the experts, and the experts get the tokens of all.
    """
    packed = model.packed()
    own = max(kernel.own_s(packed, sums(shape)) for shape in shapes)
    mean = sum(shape.tokens for shape in shapes) / len(shapes)
    return max(float(packed.coefficients[kernel.FLOOR]), own + kernel.ranks_s(packed, mean))


class _Recorded(Content):
    """The content of a request, which shares at most its prompt, if that is known, with others."""

    __slots__ = ("_shared_blocks",)

    def __init__(
        self, prompt: Iterable[Segment], output: str, block_size_tokens: int, shared_blocks: int
    ) -> None:
        super().__init__(prompt, output, block_size_tokens)
        self._shared_blocks = shared_blocks

    @property
    def shared_blocks(self) -> int:
        return self._shared_blocks


class _Replay:
    def __init__(
        self,
        requests: Sequence[RecordedRequest],
        config: ReplayConfig,
        step_time: StepTimeModel,
        first: int,
        clients: int,
    ) -> None:
        self.requests = requests
        self.step_time = step_time
        self.wanted = first
        self.open = set(range(first))
        self.block_size = config.engine.block_size_tokens
        self.caches = config.engine.enable_prefix_caching
        self.twins = [Twin(config.engine, prefix_cache=self.caches) for _ in range(config.ranks)]
        self.frontend_s = config.frontend_s
        self.arrived_s = [0.0 if clients else request.arrival_s for request in requests]
        order = deque(sorted(range(len(requests)), key=self.arrived_s.__getitem__))
        at_first = min(clients, len(order)) if clients else len(order)
        coming = [order.popleft() for _ in range(at_first)]
        self.arrivals = deque((self.arrived_s[i] + self.frontend_s, i) for i in coming)
        self.unasked = order
        self.clock = self.arrivals[0][0] if self.arrivals else 0.0
        self.loop = EngineLoop(self.twins)
        self.ends_s = deque[float]()  # of the steps in flight
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
                content=self._content(index) if self.caches else None,
            )
            self.twins[self._rank(at_s)].add(seq)

    def _content(self, index: int) -> Content:
        request = self.requests[index]
        known = request.prompt_token_ids
        prompt = [(str(token), 1) for token in known] or [(f"{index}:", request.prompt_tokens)]
        shared = len(known) // self.block_size
        return _Recorded(prompt, f"{index}: answer", self.block_size, shared)

    def _rank(self, at_s: float) -> int:
        """Choose as vLLM does: the least loaded rank by counts that are up to 0.1 s old.

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
        if (batches := self.loop.schedule()) is not None:
            begin_s = max(self.clock, self.ends_s[-1]) if self.ends_s else self.clock
            self.ends_s.append(begin_s + self._seconds(batches))
        if self.loop.output_due:
            self.clock = max(self.clock, self.ends_s.popleft())
            self._apply_output()
        if self.loop.busy and not self.loop.waits_in_vain:
            return
        if self.arrivals:
            self.clock = max(self.clock, self.arrivals[0][0])
        elif self.open:
            raise ValueError("a recorded request does not fit the engine's KV cache")

    def _seconds(self, batches: RankBatches) -> float:
        shapes = [BatchShape() if batch is None else batch.shape for batch in batches]
        if not any(shape.tokens for shape in shapes):
            return 0.0  # it only preempts, or reports which requests have ended: no model runs
        if len(shapes) == 1:
            return self.step_time.step_s(shapes[0])
        return ranks_step_s(self.step_time, shapes)

    def _apply_output(self) -> None:
        for done in self.loop.apply_output():
            for seq in done.sampled:
                self.first.setdefault(int(seq.request_id), self.clock)
            for seq in done.finished:
                index = int(seq.request_id)
                self.last[index] = self.clock
                self.open.discard(index)
                self._ask_again()

    def _ask_again(self) -> None:
        """With a limited number of clients, let the one that was answered send the next request."""
        if self.unasked:
            index = self.unasked.popleft()
            self.arrived_s[index] = self.clock
            self.arrivals.append((self.clock + self.frontend_s, index))

    def _latency(self, index: int) -> Latency:
        arrived_s, tokens = self.arrived_s[index], self.requests[index].output_tokens
        return Latency(self.first[index] - arrived_s, self.last[index] - arrived_s, tokens)
