"""From a published snapshot back to a twin that continues where the engine stands."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from foretell.engine.arrays import new_state, steps_in_flight
from foretell.engine.batch import Batch as TwinBatch
from foretell.engine.twin import Twin
from foretell.kernel import queues
from foretell.kernel.futures import limited
from foretell.kernel.layout import RUNNING, Batch, State, new_batch
from foretell.model import EngineSnapshot, RequestState

ExpectedOutput = Callable[[RequestState], float]
"""Total output tokens a request is expected to generate, given how far it has come."""


@dataclass(frozen=True, slots=True)
class Restored:
    """An engine's state as arrays: running requests in the first slots, then the waiting ones."""

    state: State
    batches: tuple[Batch, ...]
    """The steps in flight, the oldest first."""
    requests: tuple[RequestState, ...]
    """By slot."""
    keys: NDArray[np.int64]
    """A number that stands for each request, the same in every snapshot."""


def restore(snapshot: EngineSnapshot) -> Restored:
    """The scheduler of `snapshot`. Lengths are yet to be said: everyone ends with the next token.

    Prefix sharing in a real engine lets the blocks that requests hold add up to more than exist;
    the free ones are as published.
    """
    config, requests = snapshot.config, (*snapshot.running, *snapshot.waiting)
    state = new_state(config, len(requests))
    _fill_rows(state, requests)
    running = len(snapshot.running)
    rows, engine = state.sequences[:running], state.engine
    rows["status"] = RUNNING
    rows["computed"] = [r.computed_tokens for r in snapshot.running]
    rows["blocks"] = -(-rows["computed"] // config.block_size_tokens)
    state.running[:running] = np.arange(running)
    engine["running"], engine["free"] = running, snapshot.free_blocks
    engine["held"] = int(rows["blocks"].sum())
    engine["owned"] = engine["free"] + engine["held"]
    batches = _steps_in_flight(state, snapshot)
    for slot in range(running, len(requests)):
        queues.enqueue(state, slot)
    keys = [crc32((r.foretell_id or r.request_id).encode()) for r in requests]
    return Restored(state, batches, requests, np.array(keys, np.int64))


def restore_twin(
    snapshot: EngineSnapshot, expected: ExpectedOutput
) -> tuple[Twin, list[TwinBatch]]:
    """The same to be driven step by step, and the steps in flight for `Twin.complete`."""
    restored = restore(snapshot)
    state = restored.state
    for slot, request in enumerate(restored.requests):
        state.sequences[slot]["stop_after"] = limited(state, slot, round(expected(request)))
    names = {slot: r.foretell_id or r.request_id for slot, r in enumerate(restored.requests)}
    return Twin.adopt(snapshot.config, state, names, restored.batches)


def _fill_rows(state: State, requests: Seq[RequestState]) -> None:
    rows = state.sequences
    rows["arrival_s"] = [r.arrival_unix_s for r in requests]
    rows["priority"] = [r.priority for r in requests]
    rows["prompt"] = [r.prompt_tokens for r in requests]
    rows["output"] = [r.output_tokens for r in requests]
    rows["max_tokens"] = [min(r.max_tokens, np.iinfo(np.int32).max) for r in requests]
    rows["preemptions"] = [r.preemptions for r in requests]
    rows["hits"] = [r.cached_tokens // state.engine["block_size"] for r in requests]


def _steps_in_flight(state: State, snapshot: EngineSnapshot) -> tuple[Batch, ...]:
    """What is scheduled and not applied, and what that means for each of the running.

    The newest step is published; with async scheduling, who samples a token in the one before
    follows from how many are to come. What else that step computes is not known, and matters only
    to a request that is preempted before it ends.
    """
    rows = state.sequences[: len(snapshot.running)]
    scheduled = np.array([r.scheduled_tokens for r in snapshot.running], np.int32)
    known = rows["prompt"] + rows["output"]
    if steps_in_flight(snapshot.config) == 1:
        samples = (scheduled > 0) & (rows["computed"] >= known)
        older = np.zeros_like(samples)
    else:
        unknown = np.array([r.in_flight_tokens for r in snapshot.running], np.int32)
        samples = (scheduled > 0) & (unknown > 0) & (rows["computed"] >= known + unknown - 1)
        older = unknown > samples
    rows["placeholders"] = samples.astype(np.int32) + older
    rows["in_flight"] = scheduled + older
    batches = []
    if older.any() or (scheduled.any() and len(snapshot.steps_in_flight) > 1):
        batches.append(_batch(np.flatnonzero(older), np.ones_like(scheduled), older))
    if scheduled.any():
        batches.append(_batch(np.flatnonzero(scheduled), scheduled, samples))
    return tuple(batches)


def _batch(slots: NDArray[np.intp], tokens: NDArray[np.int32], samples: NDArray[np.bool_]) -> Batch:
    batch = new_batch(len(slots))
    batch.counts["scheduled"] = len(slots)
    batch.entries["slot"] = slots
    batch.entries["tokens"] = tokens[slots]
    batch.entries["samples"] = samples[slots]
    return batch
