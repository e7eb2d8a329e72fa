"""A twin stepped through time by hand, to compare the kernel's rollouts with."""

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from random import Random

from foretell.engine import Sequence, Twin
from foretell.engine.batch import StepBatch
from foretell.latency.linear import LinearStepTime
from foretell.model import (
    EncoderInput,
    EngineConfig,
    EngineSnapshot,
    LengthEstimate,
    RequestSpec,
    RequestState,
    Step,
)

STEP_TIME = LinearStepTime((0.01, 1e-4, 1e-7, 1e-4, 5e-4, 1e-6))
NOW = 1000.0


class SteppedEngine:
    """A twin in virtual time: the loop of vLLM's engine core, and a device that runs the steps."""

    def __init__(self, twin: Twin) -> None:
        self.twin = twin
        self.now = NOW
        self.queue: deque[tuple[StepBatch, float, float]] = deque()  # with its begin and end
        self.first: dict[str, float] = {}
        self.last: dict[str, float] = {}

    def schedule(self) -> bool:
        batch = self.twin.schedule()
        if batch is None:
            return False
        begin = max(self.now, self.queue[-1][2]) if self.queue else self.now
        took = STEP_TIME.step_s(batch.shape) if batch.scheduled else 0.0
        self.queue.append((batch, begin, begin + took))
        return bool(batch.scheduled)

    def iterate(self) -> None:
        chose = self.schedule()
        if len(self.queue) == self.twin.max_steps_in_flight or not chose:
            self.apply()

    def apply(self) -> None:
        batch, _, end = self.queue.popleft()
        self.now = end
        outcome = self.twin.complete(batch)
        for seq in outcome.sampled:
            if seq.output_tokens == 1:
                self.first[seq.request_id] = self.now
        for seq in outcome.finished:
            self.last[seq.request_id] = self.now

    def run(self, arrivals: list[tuple[float, Sequence]]) -> None:
        """Run until all have ended, including requests that arrive later; their times ascend."""
        coming = deque(arrivals)
        while coming or self.queue or not self.twin.idle:
            while coming and coming[0][0] <= self.now:
                self.twin.add(coming.popleft()[1])
            full = len(self.queue) == self.twin.max_steps_in_flight
            if not full and self.schedule() and len(self.queue) < self.twin.max_steps_in_flight:
                continue
            if self.queue:
                self.apply()
            else:
                self.now = max(self.now, coming[0][0])

    def snapshot(self) -> EngineSnapshot:
        """The snapshot right after `schedule`."""
        newest = {id(s): n for s, n in self.queue[-1][0].scheduled} if self.queue else {}
        twin, steps = self.twin, [Step(1, at, 0.0, b.shape) for b, at, _ in self.queue]
        return EngineSnapshot(
            "e", "run", 1, NOW, self.now, twin.config, twin.free_blocks,
            tuple(self._state_of(s, newest.get(id(s), 0)) for s in twin.running),
            tuple(self._state_of(s, 0) for s in twin.waiting), tuple(steps), (),
            encoder_cache=twin.encoder_cache,
        )  # fmt: skip

    def _state_of(self, seq: Sequence, scheduled: int) -> RequestState:
        state = replace(state_of(seq, scheduled), encoder_inputs=self.twin.encoder_inputs(seq))
        if len(self.queue) == 1 or not self.twin.config.max_num_encoder_input_tokens:
            return state
        older = {id(s): tokens for s, tokens in self.queue[0][0].scheduled}
        return replace(state, older_tokens=older.get(id(seq), 0))


def state_of(seq: Sequence, scheduled: int) -> RequestState:
    return RequestState(
        request_id=seq.request_id,
        foretell_id="",
        prompt_tokens=seq.prompt_tokens,
        output_tokens=seq.output_tokens,
        computed_tokens=seq.computed_tokens,
        max_tokens=seq.max_tokens,
        arrival_unix_s=seq.arrival_s,
        priority=seq.priority,
        predicted_output_tokens=seq.stop_after,
        scheduled_tokens=scheduled,
        in_flight_tokens=seq.placeholders,
        left_blocks=int(seq.row["left"]),
    )


def random_inputs(rng: Random, prompt: int, config: EngineConfig) -> tuple[EncoderInput, ...]:
    """Multimodal inputs within a prompt, with a few contents, each of which has one size."""
    most = min(config.max_num_encoder_input_tokens, config.encoder_cache_size)
    inputs: list[EncoderInput] = []
    offset = 0
    while most and rng.random() < 0.7:
        offset += rng.choice([0, rng.randint(0, 30)])
        content = rng.randint(0, 5)
        length = 1 + content * (most - 1) // 5
        if offset + length > prompt:
            break
        embeds = length - length // 4
        inputs.append(EncoderInput(content, offset, length, embeds, length // 4, length))
        offset += length
    return tuple(inputs)


def longest(config: EngineConfig) -> int:
    """The most tokens a request has in these tests: two of that size fit."""
    return config.total_blocks // config.kv_cache_groups * config.block_size_tokens // 2


def random_engine(
    rng: Random, *, async_scheduling: bool, attention: Mapping[str, int] | None = None
) -> SteppedEngine | None:
    """An engine at a random step, after `schedule`; None if no snapshot shows all of its state.

    `attention` are the fields of `EngineConfig` for its KV cache groups, or for what it encodes.
    """
    config = EngineConfig(
        "m", rng.choice([4, 16]), rng.randint(20, 60), rng.randint(2, 8), 48, 256,
        async_scheduling=async_scheduling, policy=rng.choice(["fcfs", "fcfs", "priority"]),
        long_prefill_token_threshold=rng.choice([0, 0, 20]),
    )  # fmt: skip
    if attention is not None:
        total = config.total_blocks * attention["kv_cache_groups"]
        config = replace(config, total_blocks=total, **attention)
    most = longest(config)
    engine = SteppedEngine(Twin(config))
    for i in range(rng.randint(2, 20)):
        output = rng.randint(1, min(60, most - 1))
        limit = output if rng.random() < 0.5 else output + 9
        prompt = rng.randint(1, min(150, most - output))
        inputs = random_inputs(rng, prompt, config)
        engine.twin.add(Sequence(f"r{i}", prompt, output, limit, arrival_s=i, inputs=inputs))
    for _ in range(rng.randint(0, 60)):
        if not engine.twin.idle:
            engine.iterate()
    chose = engine.schedule()
    # Otherwise there is nothing to restore, or there is output in flight that no snapshot shows.
    return engine if chose and not any(b.preempted for b, _, _ in engine.queue) else None


def later_requests(
    rng: Random, start: float, config: EngineConfig
) -> list[tuple[float, RequestSpec]]:
    """Up to five requests with their arrival times, in order of arrival."""
    at, requests, most = start, [], longest(config)
    for i in range(rng.randint(0, 5)):
        at += rng.expovariate(5.0)
        output = rng.randint(1, min(40, most - 1))
        prompt = rng.randint(1, min(100, most - output))
        length = LengthEstimate(float(output))
        requests.append((at, RequestSpec(f"later{i}", prompt, 0, length)))
    return requests
