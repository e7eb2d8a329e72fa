"""From a published snapshot back to a twin that continues where the engine stands."""

from collections.abc import Callable
from dataclasses import dataclass
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from foretell.engine.arrays import new_state, steps_in_flight
from foretell.engine.batch import Batch as TwinBatch
from foretell.engine.twin import Twin
from foretell.kernel.futures import limited
from foretell.kernel.layout import RUNNING, WAITING, Batch, State, new_batch
from foretell.model import EngineConfig, EngineSnapshot, RequestState, RequestTable

_MOST_TOKENS = np.iinfo(np.int32).max

ExpectedOutput = Callable[[RequestState], float]
"""Total output tokens a request is expected to generate, given how far it has come."""


@dataclass(frozen=True, slots=True)
class Restored:
    """An engine's state as arrays: running requests in the first slots, then the waiting ones."""

    state: State
    """With blank rows behind those of the requests."""
    batches: list[Batch]
    """The steps in flight, the oldest first."""
    requests: int
    keys: list[int]
    """A number that stands for each request, the same in every snapshot; by slot."""


def restore(snapshot: EngineSnapshot, spare: int = 0) -> Restored:
    """The scheduler of `snapshot`. Lengths are yet to be said: everyone ends with the next token.

    Prefix sharing in a real engine lets the blocks that requests hold add up to more than exist;
    the free ones are as published. `spare` blank rows are added.
    """
    config = snapshot.config
    runs, waits = RequestTable.of(snapshot.running), RequestTable.of(snapshot.waiting)
    running, requests = len(runs), len(runs) + len(waits)
    state = new_state(config, requests + spare)
    _fill_rows(state.sequences[:running], runs, config)
    _fill_rows(state.sequences[running:requests], waits, config)
    rows, engine = state.sequences[:running], state.engine
    rows["status"] = RUNNING
    rows["computed"] = runs.computed_tokens[:]
    rows["blocks"] = -(-rows["computed"] // config.block_size_tokens)
    state.running[:running] = np.arange(running)
    engine["running"], engine["free"] = running, snapshot.free_blocks
    engine["held"] = int(rows["blocks"].sum())
    engine["owned"] = engine["free"] + engine["held"]
    batches = _steps_in_flight(rows, runs, snapshot)
    _queue(state, running, requests)
    return Restored(state, batches, requests, _keys(runs) + _keys(waits))


def restore_twin(
    snapshot: EngineSnapshot, expected: ExpectedOutput
) -> tuple[Twin, list[TwinBatch]]:
    """The same to be driven step by step, and the steps in flight for `Twin.complete`."""
    restored = restore(snapshot)
    state = restored.state
    requests = (*snapshot.running, *snapshot.waiting)
    for slot, request in enumerate(requests):
        state.sequences[slot]["stop_after"] = limited(state, slot, round(expected(request)))
    names = {slot: r.foretell_id or r.request_id for slot, r in enumerate(requests)}
    return Twin.adopt(snapshot.config, state, names, restored.batches)


def _fill_rows(rows: NDArray[np.void], table: RequestTable, config: EngineConfig) -> None:
    # Slices are lists, which numpy takes in twice as fast as protobuf's columns.
    rows["arrival_s"] = table.arrival_unix_s[:]
    rows["prompt"] = table.prompt_tokens[:]
    rows["output"] = table.output_tokens[:]
    rows["max_tokens"] = np.minimum(table.max_tokens[:], _MOST_TOKENS)
    # Mostly zeros, as blank rows are.
    if any(column := table.priority[:]):
        rows["priority"] = column
    if any(column := table.preemptions[:]):
        rows["preemptions"] = column
    if any(column := table.cached_tokens[:]):
        rows["hits"] = np.array(column) // config.block_size_tokens


def _queue(state: State, begin: int, end: int) -> None:
    """The slots from `begin` up to `end` wait in their order, in which they will be admitted."""
    if begin == end:
        return
    rows, engine = state.sequences[begin:end], state.engine
    rows["status"] = WAITING
    rows["next"][:-1] = np.arange(begin + 1, end)
    rows["previous"][1:] = np.arange(begin, end - 1)
    engine["head"], engine["tail"], engine["waiting"] = begin, end - 1, end - begin


def _keys(table: RequestTable) -> list[int]:
    return [
        crc32((foretell_id or request_id).encode())
        for foretell_id, request_id in zip(table.foretell_id, table.request_id, strict=True)
    ]


def _steps_in_flight(
    rows: NDArray[np.void], table: RequestTable, snapshot: EngineSnapshot
) -> list[Batch]:
    """What is scheduled and not applied, and what that means for each of the running.

    The newest step is published; with async scheduling, who samples a token in the one before
    follows from how many are to come. What else that step computes is not known, and matters only
    to a request that is preempted before it ends.
    """
    scheduled = np.array(table.scheduled_tokens[:], np.int32)
    known = rows["prompt"] + rows["output"]
    if steps_in_flight(snapshot.config) == 1:
        samples = (scheduled > 0) & (rows["computed"] >= known)
        older = np.zeros_like(samples)
    else:
        unknown = np.array(table.in_flight_tokens[:], np.int32)
        samples = (scheduled > 0) & (unknown > 0) & (rows["computed"] >= known + unknown - 1)
        older = unknown > samples
    rows["placeholders"] = samples.astype(np.int32) + older
    rows["in_flight"] = scheduled + older
    batches = []
    if older.any() or (scheduled.any() and len(snapshot.steps_in_flight) > 1):
        batches.append(_batch(np.flatnonzero(older), np.ones_like(scheduled), older))
    if scheduled.any():
        batches.append(_batch(np.flatnonzero(scheduled), scheduled, samples))
    return batches


def _batch(slots: NDArray[np.intp], tokens: NDArray[np.int32], samples: NDArray[np.bool_]) -> Batch:
    batch = new_batch(len(slots))
    batch.counts["scheduled"] = len(slots)
    batch.entries["slot"] = slots
    batch.entries["tokens"] = tokens[slots]
    batch.entries["samples"] = samples[slots]
    return batch
