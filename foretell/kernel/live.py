"""One engine whose time the caller keeps: simulated, replayed or emulated.

The loop is that of forecasts (`kernel.loop`). The caller advances the engine when a step ends, or
when an idle engine is to find that a request has arrived.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.blocks import blocks_to_admit
from foretell.kernel.jit import compiled
from foretell.kernel.layout import NONE, Batch, Record, State
from foretell.kernel.lengths import WIDTH
from foretell.kernel.loop import Loop, batch_s, land, launch, newest, schedule_next
from foretell.kernel.output import check
from foretell.kernel.pictures import (
    CERTAIN,
    FREE_BLOCKS,
    REQUESTS,
    RUNNING,
    WAITING_BLOCKS,
    Pictures,
)
from foretell.kernel.start import RECORDS
from foretell.kernel.step_time import StepTime

TALLY = np.dtype(
    [
        ("begun_s", np.float64, (2,)),  # when each of the two batches began on the device
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

BELIEF = np.dtype([("length", np.float64, (WIDTH,)), ("key", np.int64)], align=True)
"""A request's output length as predictors believe it, and the key that it is drawn with."""

_CHECK_POOL_EVERY = 256
"""Calls between two counts of all blocks where they have identity: that takes as long as a step."""


class Live(NamedTuple):
    """The arrays of one engine and of its steps in flight."""

    records: NDArray[np.void]
    """(1,) of `LIVE`."""
    sequences: NDArray[np.void]
    running: NDArray[np.int32]
    blocks: NDArray[np.void]
    places: NDArray[np.void]
    first_with: NDArray[np.int32]
    inputs: NDArray[np.void]
    older: NDArray[np.void]
    """Entries of the first of the two batches."""
    newer: NDArray[np.void]
    """Entries of the second one."""
    beliefs: NDArray[np.void]
    """Rows of `BELIEF`, by slot."""


@compiled
def advance(
    live: Live,
    model: StepTime,
    now_s: float,
    lands: bool,
    steps: int,
    max_num_scheduled_tokens: int,
    max_num_seqs: int,
    outcome: NDArray[np.int64],
) -> int:
    """The oldest step in flight ends, if there is one and it `lands`, and others are scheduled.

    At most `steps` of them; returns how many. Every step is checked against the two limits. Fills
    `outcome`: how many sequences the step ended and which of the two batches it was.
    `clock.first_end_s` is then the end of the oldest step in flight. AssertionError where an
    invariant is broken.
    """
    records, tally = live.records[0].at, live.records[0].tally
    loop = Loop(
        State(
            records.engine,
            live.sequences,
            live.running,
            live.blocks,
            live.places,
            live.first_with,
            live.inputs,
        ),
        (Batch(records.older, live.older), Batch(records.newer, live.newer)),
        records.clock,
    )
    state, clock = loop.state, loop.clock
    count_free(live, now_s)
    clock.now_s = now_s
    tally.calls += 1
    outcome[0] = outcome[1] = 0
    if lands and clock.in_flight > 0:
        landed = clock.oldest
        land(loop)
        tally.completed += 1
        outcome[0], outcome[1] = loop.batches[landed].counts.finished, landed
    scheduled = 0
    while scheduled < steps and schedule_next(loop, model):
        scheduled += 1
        index = newest(loop)
        batch = loop.batches[index]
        begun_s = now_s if clock.in_flight == 0 else max(now_s, clock.last_end_s)
        tally.begun_s[index] = begun_s
        launch(loop, batch_s(model, batch.counts))
        tally.scheduled += 1
        counts = batch.counts
        tally.tokens += counts.prefill_tokens + counts.decode_seqs + counts.draft_tokens
        assert batch.counts.scheduled == 0 or clock.last_end_s > begun_s, "a step took no time"
        _check_batch(batch, max_num_scheduled_tokens)
        if batch.counts.scheduled == 0:
            break
    assert state.engine.running <= max_num_seqs, "too many requests run"
    if not state.engine.knows_content or tally.calls % _CHECK_POOL_EVERY == 0:
        check(state)
    return scheduled


@compiled
def run_steps(
    live: Live,
    model: StepTime,
    steps: int,
    max_num_scheduled_tokens: int,
    max_num_seqs: int,
    outcome: NDArray[np.int64],
    shapes: NDArray[np.int64],
) -> int:
    """Make at most `steps` steps, one after the other, and no more once one admits, preempts or
    ends a request, or nothing is left; returns how many.

    Fills `shapes`, (steps, 5), in the order of `BatchShape`, and `outcome` with how many sequences
    the last one ended and which of the two batches it was. No step may be in flight.
    """
    made = 0
    while made < steps:
        if advance(live, model, 0.0, False, 1, max_num_scheduled_tokens, max_num_seqs, outcome) < 1:
            break
        at = live.records[0].at
        counts = at.newer if at.clock.oldest == 1 else at.older
        shape = shapes[made]
        shape[0], shape[1] = counts.prefill_seqs, counts.prefill_tokens
        shape[2], shape[3] = counts.prefill_pairs, counts.decode_seqs
        shape[4] = counts.decode_pairs
        advance(live, model, 0.0, True, 0, max_num_scheduled_tokens, max_num_seqs, outcome)
        made += 1
        if counts.admitted + counts.preempted + counts.finished > 0:
            break
    return made


@compiled
def count_free(live: Live, now_s: float) -> None:
    """Sum up free blocks over the time since they last changed.

    To be called before blocks are taken or freed otherwise than by `advance`, and at the end.
    """
    engine, tally = live.records[0].at.engine, live.records[0].tally
    seconds = min(now_s, tally.until_s) - tally.counted_s
    if seconds > 0.0:
        tally.counted_for_s += seconds
        tally.free_s += seconds * engine.free
        tally.free_squared_s += seconds * engine.free * engine.free
        tally.counted_s += seconds


@compiled
def _check_batch(batch: Batch, max_num_scheduled_tokens: int) -> None:
    counts, tokens = batch.counts, 0
    for i in range(counts.scheduled):
        assert batch.entries[i].tokens > 0, "scheduled no tokens"
        tokens += batch.entries[i].tokens
    assert tokens <= max_num_scheduled_tokens, "tokens over budget"
    shape = counts.prefill_tokens + counts.decode_seqs + counts.draft_tokens
    assert tokens == shape, "a shape does not hold its tokens"


@compiled
def publish(live: Live, pictures: Pictures, index: int, now_s: float) -> None:
    """Make the engine's picture from what a published snapshot would say of it at this moment."""
    header, at = pictures.headers[index], live.records[0].at
    requests, engine = pictures.requests[index], at.engine
    header.engine, header.known_s = engine, now_s
    header.contents = header.inputs = 0  # simulated prompts have no multimodal inputs
    header.version += 1
    batches = (Batch(at.older, live.older), Batch(at.newer, live.newer))
    newest_step = batches[(at.clock.oldest + at.clock.in_flight + 1) % 2]
    scheduled = newest_step.counts.scheduled if at.clock.in_flight > 0 else 0
    count, entry, certain, waiting_blocks = 0, 0, 1, 0
    for i in range(engine.running):
        slot = live.running[i]
        seq, request = live.sequences[slot], requests[count]
        certain &= _publish_request(live, slot, request)
        request.cached_tokens, request.computed = seq.cached, seq.computed
        request.blocks, request.left = seq.blocks, seq.left
        request.scheduled, request.in_flight = 0, seq.placeholders
        # Entries are in the order of the running list, but for those that compute nothing.
        for j in range(scheduled):
            place = (entry + j) % scheduled
            if newest_step.entries[place].slot == slot:
                request.scheduled, entry = newest_step.entries[place].tokens, place + 1
                break
        count += 1
    slot = engine.head
    while slot != NONE:
        seq, request = live.sequences[slot], requests[count]
        certain &= _publish_request(live, slot, request)
        # Whoever has not run yet is shown with the hits that its predictor believes in.
        request.cached_tokens = seq.cached if seq.preemptions else seq.hits * engine.block_size
        request.computed = request.blocks = request.scheduled = request.in_flight = 0
        request.left = 0
        waiting_blocks += blocks_to_admit(engine, 0, request.prompt + request.output, 0)
        count += 1
        slot = seq.next
    figures = header.figures
    figures[REQUESTS], figures[RUNNING], figures[FREE_BLOCKS] = count, engine.running, engine.free
    figures[WAITING_BLOCKS], figures[CERTAIN] = waiting_blocks, certain
    _publish_steps(live, header)


@compiled
def _publish_request(live: Live, slot: int, request: Record) -> int:
    """Fill the row of any request; returns 1 where its length is certain, otherwise 0."""
    seq, belief = live.sequences[slot], live.beliefs[slot]
    request.arrival_s, request.priority = seq.arrival_s, seq.priority
    request.preemptions, request.adapter = seq.preemptions, seq.adapter
    request.inputs = request.older = 0
    request.ttft_target_s, request.tpot_target_s = seq.ttft_target_s, seq.tpot_target_s
    has_targets = seq.ttft_target_s > 0.0 or seq.tpot_target_s > 0.0
    if has_targets and seq.first_token_s < np.inf:
        request.ttft_target_s = seq.first_token_s - seq.arrival_s
    request.prompt, request.output, request.max_tokens = seq.prompt, seq.output, seq.max_tokens
    request.key = belief.key
    for i in range(WIDTH):
        request.length[i] = belief.length[i]
    return int(belief.length[0] == belief.length[WIDTH - 2] and belief.length[WIDTH - 1] == 0.0)


@compiled
def _publish_steps(live: Live, header: Record) -> None:
    at, tally = live.records[0].at, live.records[0].tally
    batches = (Batch(at.older, live.older), Batch(at.newer, live.newer))
    header.steps, header.begun_s = at.clock.in_flight, tally.begun_s[at.clock.oldest]
    for i in range(at.clock.in_flight):
        counts, shape = batches[(at.clock.oldest + i) % 2].counts, header.shapes[i]
        shape[0], shape[1] = counts.prefill_seqs, counts.prefill_tokens
        shape[2], shape[3] = counts.prefill_pairs, counts.decode_seqs
        shape[4], shape[5] = counts.decode_pairs, counts.draft_tokens
