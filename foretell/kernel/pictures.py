"""Snapshots without a wire.

What a predictor knows of an engine is what `engine.restore.restore` makes of a published snapshot.
A simulator has the engine itself, so it takes the same from there, thousands of times a second.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.futures import RECORDS, Lengths
from foretell.kernel.jit import compiled
from foretell.kernel.layout import NONE, RUNNING, WAITING, Batch
from foretell.kernel.lengths import WIDTH
from foretell.kernel.live import Live
from foretell.kernel.step_time import StepTime, step_s

KNOWN = np.dtype(
    [
        ("at", RECORDS),  # the clock has the steps in flight, not yet the time
        ("requests", np.int64),
        ("steps", np.int64),  # in flight
        ("begun_s", np.float64),  # the oldest of them
        ("steps_s", np.float64, (2,)),  # what each should take, the oldest first
        ("taken_s", np.float64),
    ],
    align=True,
)


class Picture(NamedTuple):
    """An engine as last published: running requests in the first rows, then the waiting ones."""

    known: NDArray[np.void]
    """(1,) of `KNOWN`."""
    sequences: NDArray[np.void]
    running: NDArray[np.int32]
    older: NDArray[np.void]
    """Entries of the steps in flight."""
    newer: NDArray[np.void]
    lengths: Lengths
    figures: NDArray[np.int64]
    """Requests, those running, free blocks, blocks that the waiting need, all lengths certain."""


@compiled
def photograph(
    live: Live, believed: StepTime, lengths: Lengths, picture: Picture, now_s: float
) -> None:
    """Fill `picture`; `lengths` are by the slots of the engine, step times are as `believed`."""
    known, source = picture.known[0], live.records[0].at
    known.at, known.taken_s = source, now_s
    engine, count = known.at.engine, 0
    for i in range(source.engine.running):
        slot = live.running[i]
        _show(live, lengths, picture, slot, count)
        row = picture.sequences[count]
        row.status, row.computed = RUNNING, live.sequences[slot].computed
        row.blocks = -(-row.computed // engine.block_size)
        picture.running[count] = count
        count += 1
    engine.head = engine.tail = NONE
    waiting_blocks = 0
    slot = source.engine.head
    while slot != NONE:
        _show(live, lengths, picture, slot, count)
        row = picture.sequences[count]
        row.status = WAITING
        if row.preemptions == 0:
            row.hits = live.sequences[slot].hits  # what its predictor believes
        waiting_blocks += -(-(row.prompt + row.output) // engine.block_size)
        if engine.head == NONE:
            engine.head = count
        else:
            row.previous = count - 1
            picture.sequences[count - 1].next = count
        engine.tail = count
        count += 1
        slot = live.sequences[slot].next
    known.requests = count
    certain = 1
    for i in range(count):
        length = picture.lengths.rows[i]
        certain &= int(length[0] == length[WIDTH - 2] and length[WIDTH - 1] == 0.0)
    figures = picture.figures
    figures[0], figures[1], figures[2] = count, engine.running, engine.free
    figures[3], figures[4] = waiting_blocks, certain
    _show_blocks(picture)
    _show_steps(live, picture)
    _time_steps(live, believed, picture)


@compiled
def _show(live: Live, lengths: Lengths, picture: Picture, slot: int, index: int) -> None:
    """What a snapshot says of any request; `noted` holds its slot for a moment."""
    seq, row = live.sequences[slot], picture.sequences[index]
    row.arrival_s, row.first_token_s, row.finished_s = seq.arrival_s, np.inf, np.inf
    row.priority, row.preemptions = seq.priority, seq.preemptions
    row.prompt, row.output, row.max_tokens = seq.prompt, seq.output, seq.max_tokens
    row.hits = seq.cached // live.records[0].at.engine.block_size
    row.next = row.previous = NONE
    row.computed = row.blocks = row.placeholders = row.in_flight = row.stop_after = 0
    row.cached = row.stale = row.committed = row.place = row.entered = row.last = row.end = 0
    row.noted = slot
    shown = picture.lengths
    shown.keys[index], shown.generated[index] = lengths.keys[slot], seq.output
    for i in range(WIDTH):
        shown.rows[index, i] = lengths.rows[slot, i]


@compiled
def _show_blocks(picture: Picture) -> None:
    """Blocks without identity: those that the running ones must hold, and the free ones."""
    engine, held = picture.known[0].at.engine, 0
    for i in range(engine.running):
        held += picture.sequences[i].blocks
    engine.knows_content = engine.unhashed = 0
    engine.blank_head = engine.lru_head = engine.lru_tail = NONE
    engine.held, engine.owned = held, engine.free + held


@compiled
def _show_steps(live: Live, picture: Picture) -> None:
    """The steps in flight as far as a snapshot tells them (`restore._steps_in_flight`)."""
    source, shown = live.records[0].at, picture.known[0].at
    clock, running = source.clock, source.engine.running
    batches = (Batch(source.older, live.older), Batch(source.newer, live.newer))
    newest = batches[(clock.oldest + clock.in_flight + 1) % 2]
    scheduled = newest.counts.scheduled if clock.in_flight > 0 else 0
    before, now = 0, 0  # how many are shown in the step before the newest, and in it
    for i in range(running):
        slot, row, tokens = picture.sequences[i].noted, picture.sequences[i], 0
        row.noted = 0
        for j in range(scheduled):
            if newest.entries[j].slot == slot:
                tokens = newest.entries[j].tokens
                break
        known, unknown = row.prompt + row.output, live.sequences[slot].placeholders
        older = 0
        samples = int(tokens > 0 and row.computed >= known)
        if shown.engine.depth > 1:
            samples = int(tokens > 0 and unknown > 0 and row.computed >= known + unknown - 1)
            older = int(unknown > samples)
        row.placeholders, row.in_flight = samples + older, tokens + older
        if older > 0:
            entry = picture.older[before]
            entry.slot, entry.tokens, entry.samples = i, 1, 1
            before += 1
        if tokens > 0:
            entry = picture.newer[now]
            entry.slot, entry.tokens, entry.samples = i, tokens, samples
            now += 1
    for i in range(running, picture.known[0].requests):
        picture.sequences[i].noted = 0
    shown.older.scheduled, shown.newer.scheduled = before, now
    shown.clock.oldest, shown.clock.in_flight = 0, 2
    if before == 0 and not (now > 0 and clock.in_flight > 1):
        shown.clock.oldest, shown.clock.in_flight = 1, int(now > 0)
    shown.clock.next_arrival = shown.clock.preemptions = shown.clock.iterations = 0


@compiled
def _time_steps(live: Live, believed: StepTime, picture: Picture) -> None:
    known, source = picture.known[0], live.records[0].at
    clock, tally = source.clock, live.records[0].tally
    batches = (Batch(source.older, live.older), Batch(source.newer, live.newer))
    known.steps, known.begun_s = clock.in_flight, tally.begun_s[clock.oldest]
    for i in range(clock.in_flight):
        counts = batches[(clock.oldest + i) % 2].counts
        known.steps_s[i] = step_s(
            believed,
            counts.prefill_seqs,
            counts.prefill_tokens,
            counts.prefill_pairs,
            counts.decode_seqs,
            counts.decode_pairs,
        )
