"""Random engine states to predict from, the same in every run."""

import time
from dataclasses import dataclass
from random import Random

from foretell.latency.linear import StepTimeModel
from foretell.model import (
    BatchShape,
    EngineConfig,
    EngineSnapshot,
    LengthEstimate,
    RequestSpec,
    RequestState,
    Step,
)

STATES = 25
"""Engine states per size: the cost of a prediction depends on the lengths."""
RESERVATIONS = 2
"""Reserved requests of each engine."""
MEAN_PROMPT_TOKENS, MEAN_OUTPUT_TOKENS = 520.0, 272.0
"""Means of all requests drawn here."""
_LEAST_SEATS = 48
_STEP_S = 0.02


@dataclass(frozen=True, slots=True)
class Size:
    """The numbers of running and waiting requests of an engine."""

    running: int
    waiting: int

    def __str__(self) -> str:
        return f"{self.running} + {self.waiting}"


@dataclass(frozen=True, slots=True)
class Case:
    """One engine state, its reserved requests, and the new request to predict."""

    snapshot: EngineSnapshot
    reserved: tuple[RequestSpec, ...]
    new: RequestSpec


def make_case(size: Size, sequence: int, *, async_scheduling: bool) -> Case:
    """An engine that is decoding, as published right after it has scheduled a step.

    Prompts have 16 to 1024 tokens. Outputs are expected to have 32 to 512, of which running
    requests have produced a part. There are KV blocks for all, and a seat (of `max_num_seqs`) for
    each running request, 48 at least. If no requests wait, reserved and new ones are admitted at
    once; otherwise they queue for a seat. `sequence` numbers the snapshot.
    """
    running, waiting = size.running, size.waiting
    rng = Random(f"{running}+{waiting}/{sequence % STATES}")
    now = time.time()
    config = EngineConfig(
        model_name="m",
        block_size_tokens=16,
        total_blocks=200 * (running + waiting + RESERVATIONS + 1),
        max_num_seqs=max(_LEAST_SEATS, running) + (0 if waiting else RESERVATIONS + 1),
        max_num_scheduled_tokens=2048,
        max_model_len=4096,
        async_scheduling=async_scheduling,
    )
    depth = 2 if async_scheduling else 1
    runs = tuple(_request(rng, index, now, depth) for index in range(running))
    waits = tuple(_request(rng, running + index, now, 0) for index in range(waiting))
    used = sum(config.blocks_for(state.computed_tokens) for state in runs)
    snapshot = EngineSnapshot(
        instance_id="engine-0",
        engine_run_id="run",
        sequence=sequence,
        taken_unix_s=now,
        published_unix_s=now,
        config=config,
        free_blocks=config.total_blocks - used,
        running=runs,
        waiting=waits,
        steps_in_flight=_steps(runs, depth, now) if runs else (),
        completed_steps=(),
    )
    reserved = tuple(_new_request(rng, f"reserved-{index}") for index in range(RESERVATIONS))
    return Case(snapshot, reserved, _new_request(rng, "new"))


def arrivals_per_s(size: Size, step_time: StepTimeModel) -> float:
    """The rate at which requests end and are replaced, so that `size` stays constant."""
    context = MEAN_PROMPT_TOKENS + MEAN_OUTPUT_TOKENS / 2
    shape = BatchShape(decode_seqs=size.running, decode_pairs=round(size.running * context))
    return size.running / (MEAN_OUTPUT_TOKENS * step_time.step_s(shape))


def _request(rng: Random, index: int, now: float, depth: int) -> RequestState:
    """A decoding request with `depth` tokens in flight; a waiting one if `depth` is 0."""
    prompt, expected = rng.randint(16, 1024), rng.randint(32, 512)
    output = rng.randint(1, expected - 1) if depth else 0
    return RequestState(
        request_id=f"chatcmpl-{index:032x}-0",
        foretell_id=f"{index:032x}",
        prompt_tokens=prompt,
        output_tokens=output,
        computed_tokens=prompt + output - 1 + depth if depth else 0,
        max_tokens=2048,
        arrival_unix_s=now - (10.0 if depth else 1.0),
        predicted_output_tokens=float(expected),
        scheduled_tokens=1 if depth else 0,
        in_flight_tokens=depth,
    )


def _new_request(rng: Random, request_id: str) -> RequestSpec:
    """A request with a point estimate that is no hint, so that its length is a distribution."""
    length = LengthEstimate(float(rng.randint(32, 512)), source="model")
    return RequestSpec(request_id, rng.randint(16, 1024), 0, length)


def _steps(running: tuple[RequestState, ...], depth: int, now: float) -> tuple[Step, ...]:
    """The steps in flight, in which all running requests decode."""
    pairs = sum(state.computed_tokens for state in running)
    steps = []
    for ahead in range(depth):
        attended = pairs - (depth - 1 - ahead) * len(running)
        shape = BatchShape(decode_seqs=len(running), decode_pairs=attended)
        steps.append(Step(ahead + 1, now - _STEP_S * (depth - 1 - ahead), 0.0, shape))
    return tuple(steps)
