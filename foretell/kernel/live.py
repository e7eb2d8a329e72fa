"""One engine in time, driven from outside: it lives where `kernel.rollout` foresees.

The loop is the same; the caller keeps the clock. It calls when a step ends, or when an idle engine
is to find that somebody has arrived.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.futures import RECORDS
from foretell.kernel.jit import compiled
from foretell.kernel.layout import Batch, State
from foretell.kernel.output import check
from foretell.kernel.rollout import Roll, land, launch
from foretell.kernel.scheduling import schedule
from foretell.kernel.steady import Steady
from foretell.kernel.step_time import StepTime

TALLY = np.dtype(
    [
        ("begun_s", np.float64, (2,)),  # of each of the two batches, on the device
        ("counted_s", np.float64),  # up to when free blocks have been summed
        ("until_s", np.float64),  # when that ends
        ("counted_for_s", np.float64),
        ("free_s", np.float64),  # free blocks times seconds
        ("free_squared_s", np.float64),
        ("calls", np.int64),
        ("scheduled", np.int64),  # steps so far
        ("completed", np.int64),
        ("tokens", np.int64),  # scheduled so far, those computed again included
    ]
)

LIVE = np.dtype([("at", RECORDS), ("tally", TALLY)], align=True)

_CHECK_POOL_EVERY = 256
"""Calls between two counts of all blocks where they have identity: that takes as long as a step."""


class Live(NamedTuple):
    """An engine that runs."""

    records: NDArray[np.void]
    """(1,) of `LIVE`."""
    sequences: NDArray[np.void]
    running: NDArray[np.int32]
    blocks: NDArray[np.void]
    places: NDArray[np.void]
    first_with: NDArray[np.int32]
    older: NDArray[np.void]
    """Entries of the first of the two batches."""
    newer: NDArray[np.void]
    nobody: NDArray[np.int32]
    marks: NDArray[np.void]
    """None, as with `nobody`."""


@compiled
def advance(
    live: Live,
    model: StepTime,
    now_s: float,
    budget: int,
    max_running: int,
    outcome: NDArray[np.int64],
) -> None:
    """The oldest step in flight ends, if there is one, and what can be scheduled is.

    `budget` and `max_running` are the limits to hold it to. Fills `outcome`: how many sequences
    the step ended and which of the two batches it was. `clock.first_end_s` is the end of the oldest
    step in flight then. AssertionError where an invariant is broken.
    """
    records, tally = live.records[0].at, live.records[0].tally
    batches = (Batch(records.older, live.older), Batch(records.newer, live.newer))
    r = Roll(
        State(
            records.engine,
            live.sequences,
            live.running,
            live.blocks,
            live.places,
            live.first_with,
        ),
        batches,
        records.clock,
        live.nobody,
        live.nobody,
        live.marks,
        Steady(records.sums, live.nobody, live.nobody),
    )
    state, clock = r.state, r.clock
    _count_free(live, now_s)
    clock.now_s = now_s
    tally.calls += 1
    outcome[0] = outcome[1] = 0
    if clock.in_flight > 0:
        landed = clock.oldest
        land(r)
        tally.completed += 1
        outcome[0], outcome[1] = batches[landed].counts.finished, landed
    while clock.in_flight < state.engine.depth and state.engine.running + state.engine.waiting > 0:
        index = (clock.oldest + clock.in_flight) % 2
        batch = batches[index]
        if not schedule(state, batch):
            break
        begun_s = now_s if clock.in_flight == 0 else max(now_s, clock.last_end_s)
        tally.begun_s[index] = begun_s
        launch(r, model, batch)
        tally.scheduled += 1
        tally.tokens += batch.counts.prefill_tokens + batch.counts.decode_seqs
        assert batch.counts.scheduled == 0 or clock.last_end_s > begun_s, "a step took no time"
        _check_batch(batch, budget)
        if batch.counts.scheduled == 0:
            break
    assert state.engine.running <= max_running, "too many requests run"
    if not state.engine.knows_content or tally.calls % _CHECK_POOL_EVERY == 0:
        check(state)


@compiled
def _count_free(live: Live, now_s: float) -> None:
    """Sum up free blocks over the time since they last changed."""
    engine, tally = live.records[0].at.engine, live.records[0].tally
    seconds = min(now_s, tally.until_s) - tally.counted_s
    if seconds > 0.0:
        tally.counted_for_s += seconds
        tally.free_s += seconds * engine.free
        tally.free_squared_s += seconds * engine.free * engine.free
        tally.counted_s += seconds


@compiled
def count_free(live: Live, now_s: float) -> None:
    """As `advance` does it: before blocks are taken or freed otherwise, and at the end."""
    _count_free(live, now_s)


@compiled
def _check_batch(batch: Batch, budget: int) -> None:
    counts, tokens = batch.counts, 0
    for i in range(counts.scheduled):
        assert batch.entries[i].tokens > 0, "scheduled no tokens"
        tokens += batch.entries[i].tokens
    assert tokens <= budget, "tokens over budget"
    assert tokens == counts.prefill_tokens + counts.decode_seqs, "a shape does not hold its tokens"
