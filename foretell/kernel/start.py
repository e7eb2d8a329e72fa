"""The start of forecasts: the engine of a picture, and the requests that are on their way to it."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.drafts import drafted_tokens
from foretell.kernel.encoder import restore_inputs
from foretell.kernel.jit import compiled
from foretell.kernel.layout import BATCH, ENGINE, EXPECTED, NONE, RUNNING, WAITING, Record, State
from foretell.kernel.lengths import draw_levels
from foretell.kernel.loop import CLOCK
from foretell.kernel.pictures import FREE_BLOCKS, REQUESTS, Pictures
from foretell.kernel.pictures import RUNNING as RUNNING_REQUESTS
from foretell.kernel.rollout import Roll
from foretell.kernel.steady import NEVER, SUMS
from foretell.kernel.step_time import StepTime, step_s

RECORDS = np.dtype(
    [
        ("engine", ENGINE),
        ("older", BATCH),
        ("newer", BATCH),
        ("clock", CLOCK),
        ("sums", SUMS),
        ("picture", np.int64),  # which picture `restore` has written here
        ("version", np.int64),  # and which version of it
        ("inputs", np.int64),  # rows of multimodal inputs and of their contents
    ],
    align=True,
)
"""The records of one engine in one: handing over an array costs 0.3 us, a record 2.3 us."""

START, WORK, BLANK = range(3)
"""Places in `Scratch`: the state from which every rollout starts, the one that a rollout changes,
and one without anything in it."""
OLDER, NEWER = range(2)
RUNNING_SLOTS, ARRIVALS, WATCHED, DUE = range(4)


class Scratch(NamedTuple):
    """Working memory of forecasts, reused by each of them so that it stays in the CPU's cache."""

    records: NDArray[np.void]
    """(3,) of `RECORDS`: by `START`, `WORK`, `BLANK`."""
    sequences: NDArray[np.void]
    """(3, most requests) of `layout.SEQUENCE`: by `START`, `WORK`, `BLANK`; of the last one only
    the first row is looked at, a blank one."""
    entries: NDArray[np.void]
    """(2, 2, most requests) of `layout.ENTRY`: by `START`, `WORK`, then by `OLDER`, `NEWER`."""
    slots: NDArray[np.int32]
    """(4, most requests): by `RUNNING_SLOTS`, `ARRIVALS`, `WATCHED`, `DUE`."""
    residues: NDArray[np.int32]
    """(2, tokens of the largest block): `Steady.opening` and `Steady.leaving`."""
    totals: NDArray[np.int64]
    """(most samples * most requests,): output lengths that rollouts run with."""
    blocks: NDArray[np.void]
    """This and the next are empty: a picture shows no block's identity."""
    places: NDArray[np.void]
    inputs: NDArray[np.void]
    """(2, most inputs) of `layout.INPUT`: by `START`, `WORK`."""


@compiled
def restore(pictures: Pictures, index: int, scratch: Scratch) -> None:
    """Write the engine of a picture to `START`: its state and its steps in flight.

    Its requests get the first slots, in their order, and end with their next token. What the
    newest step in flight computes is published. With async scheduling, who samples a token in the
    one before follows from how many tokens are not known yet; what else that step computes is told
    where it decides when multimodal inputs are let go of, and otherwise matters only to a request
    that is preempted before it ends. Who waits for a grammar
    is taken to have it. Prefix sharing in a real engine lets the blocks that requests hold add up
    to more than exist; the free ones are as published. Nothing is done where that was the last to
    be written: rollouts leave it as it is.
    """
    header, requests = pictures.headers[index], pictures.requests[index]
    records, rows = scratch.records[START], scratch.sequences[START]
    if records.picture == index and records.version == header.version:
        return
    scratch.records[START] = scratch.records[BLANK]
    records.picture, records.version, records.engine = index, header.version, header.engine
    engine, held = records.engine, 0
    count, running = header.figures[REQUESTS], header.figures[RUNNING_REQUESTS]
    for i in range(count):
        rows[i] = scratch.sequences[BLANK, 0]
        request, row = requests[i], rows[i]
        row.arrival_s, row.priority = request.arrival_s, request.priority
        row.prompt, row.output, row.max_tokens = request.prompt, request.output, request.max_tokens
        row.preemptions, row.adapter = request.preemptions, request.adapter
        row.inputs = request.inputs
        row.ttft_target_s, row.tpot_target_s = request.ttft_target_s, request.tpot_target_s
        if request.cached_tokens > 0:  # a division takes as long as all the rest
            row.hits = request.cached_tokens // engine.block_size
        if i < running:
            row.status, row.computed, row.blocks = RUNNING, request.computed, request.blocks
            row.left = request.left
            held += engine.groups * row.blocks - engine.local_groups * row.left
        else:
            row.status = WAITING
            if i > running:
                row.previous, rows[i - 1].next = i - 1, i
    engine.running, engine.waiting = running, count - running
    engine.head, engine.tail = (running, count - 1) if count > running else (NONE, NONE)
    engine.knows_content = engine.unhashed = 0
    engine.blank_head = engine.lru_head = engine.lru_tail = NONE
    engine.free, engine.held = header.figures[FREE_BLOCKS], held
    engine.owned = engine.free + held
    if header.contents > 0:
        _restore_inputs(pictures, index, scratch)
    _restore_steps(pictures, index, scratch)


@compiled
def _restore_inputs(pictures: Pictures, index: int, scratch: Scratch) -> None:
    header, rows, records = pictures.headers[index], scratch.inputs[START], scratch.records[START]
    records.inputs = header.contents + header.inputs
    for i in range(records.inputs):
        rows[i] = pictures.inputs[index, i]
    slots = scratch.slots[ARRIVALS][:0]
    state = State(
        records.engine,
        scratch.sequences[START],
        slots,
        scratch.blocks,
        scratch.places,
        slots,
        rows,
    )
    restore_inputs(state, header.contents)


@compiled
def _restore_steps(pictures: Pictures, index: int, scratch: Scratch) -> None:
    header, requests = pictures.headers[index], pictures.requests[index]
    records, rows = scratch.records[START], scratch.sequences[START]
    entries, clock = scratch.entries[START], records.clock
    before, now = 0, 0  # entries of the step before the newest one, and of the newest one
    for i in range(header.figures[RUNNING_REQUESTS]):
        row, tokens, unknown = rows[i], requests[i].scheduled, requests[i].in_flight
        known, older, drafts = row.prompt + row.output, 0, 0
        samples = int(tokens > 0 and row.computed >= known)
        if records.engine.depth > 1:
            samples = int(tokens > 0 and unknown > 0 and row.computed >= known + unknown - 1)
            # Each draft token is as unknown as the token behind the drafts.
            older = max(0, unknown - tokens) if samples else unknown
            older = min(older, 1 + records.engine.drafts)
            drafts = unknown - older - 1
        elif samples:
            drafts = row.computed - known
        drafts = max(0, min(drafts, tokens - 1, records.engine.drafts))
        computed = max(older, requests[i].older)
        row.placeholders, row.in_flight = samples + drafts + older, tokens + computed
        # Of one that rests and has a single token left, a preempted one that is computed again
        # looks as if it decoded.
        row.is_prefill_chunk = row.computed < row.prompt or (
            not samples if tokens > 0 else row.computed < known + unknown - 1
        )
        if records.engine.drafts > 0 and not row.is_prefill_chunk:
            if records.engine.depth > 1:
                row.drafts = records.engine.drafts
            elif tokens == 0:
                row.drafts = drafted_tokens(records.engine, row)
        if computed > 0:
            entry = entries[OLDER, before]
            entry.slot, entry.tokens, entry.samples = i, computed, int(older > 0)
            entry.drafts = max(0, older - 1)
            before += 1
        if tokens > 0:
            entry = entries[NEWER, now]
            entry.slot, entry.tokens, entry.samples, entry.drafts = i, tokens, samples, drafts
            now += 1
    records.older.scheduled, records.newer.scheduled = before, now
    if header.steps > 1 and before + now > 0:
        clock.oldest, clock.in_flight = 0, 2
    elif before > 0:
        clock.oldest, clock.in_flight = 0, 1 + int(now > 0)
    else:
        clock.oldest, clock.in_flight = 1, int(now > 0)


@compiled
def expect(scratch: Scratch, arrival: Record, delay_s: float, cached: int, slot: int) -> None:
    """Write the sequences of `arrival`, a record of `ARRIVAL`, to `START`, from `slot` on.

    They join the queue `delay_s` later than the record says; the engine finds `cached` tokens of
    their prompt.
    """
    rows, engine = scratch.sequences[START], scratch.records[START].engine
    for i in range(arrival.sequences):
        rows[slot + i] = scratch.sequences[BLANK, 0]
        row = rows[slot + i]
        row.status, row.priority = EXPECTED, arrival.priority
        row.ttft_target_s, row.tpot_target_s = arrival.ttft_target_s, arrival.tpot_target_s
        row.arrival_s = arrival.at_s + delay_s + i * arrival.every_s
        if cached > 0:
            row.hits = cached // engine.block_size
        row.prompt = min(arrival.prompt, engine.max_model_len - 1)
        row.max_tokens = min(arrival.max_tokens, engine.max_model_len)


@compiled
def sort_arrivals(scratch: Scratch, first: int, end: int) -> None:
    """List the slots from `first` up to `end` by their arrival.

    A stable insertion sort: they are few, and all but sorted.
    """
    rows, arrivals = scratch.sequences[START], scratch.slots[ARRIVALS]
    for slot in range(first, end):
        place, at_s = slot - first, rows[slot].arrival_s
        while place > 0 and rows[arrivals[place - 1]].arrival_s > at_s:
            arrivals[place] = arrivals[place - 1]
            place -= 1
        arrivals[place] = slot


@compiled
def set_clock(
    pictures: Pictures,
    index: int,
    model: StepTime,
    now_s: float,
    every_step: bool,
    scratch: Scratch,
) -> None:
    """Say when the steps in flight end, by when they began and what they should take.

    `every_step`: every step is published, so silence means that the step in flight is still
    running. Otherwise that holds only until the moment up to which the picture is known to be true,
    and the engine is rolled on from there.
    """
    header, clock = pictures.headers[index], scratch.records[START].clock
    clock.now_s = now_s if every_step else header.known_s
    first_s = last_s = clock.now_s
    end_s = header.begun_s
    for i in range(header.steps):
        shape = header.shapes[i]
        end_s += step_s(model, shape[0], shape[1], shape[2], shape[3], shape[4], shape[5])
        end_s = max(end_s, clock.now_s)
        if i == 0:
            first_s = end_s
        last_s = end_s
    clock.first_end_s = first_s if clock.in_flight > 1 else last_s
    clock.last_end_s = last_s


@compiled
def draw_requests(pictures: Pictures, index: int, seed: int, totals: NDArray[np.int64]) -> None:
    """Draw the output lengths of a picture's requests: the first columns of `totals`."""
    requests = pictures.requests[index]
    for i in range(pictures.headers[index].figures[REQUESTS]):
        request = requests[i]
        draw_levels(request.length, request.output, request.key, seed, totals, i)


@compiled
def draw_arrival(arrival: Record, seed: int, totals: NDArray[np.int64], slot: int) -> None:
    """Draw the output lengths of an arrival's sequences: the columns of `totals` from `slot` on."""
    for i in range(arrival.sequences):
        draw_levels(arrival.length, 0, arrival.key + i, seed, totals, slot + i)


@compiled
def limited(state: State, slot: int, total: int) -> int:
    """`total` as output tokens that the engine will allow `slot`: at least one more."""
    seq = state.sequences[slot]
    most = state.engine.max_model_len - seq.prompt
    if seq.max_tokens > 0:
        most = min(most, seq.max_tokens)
    return max(seq.output + 1, min(most, total))


@compiled
def reset(work: Roll, scratch: Scratch, requests: int) -> None:
    """Back to the start, with so many requests. The marks are left: one rollout comes to them."""
    scratch.records[WORK] = scratch.records[START]
    state, due = work.loop.state, work.steady.due
    older, newer = work.loop.batches
    start, entries = scratch.sequences[START], scratch.entries[START]
    for slot in range(requests):
        state.sequences[slot] = start[slot]
        due[slot] = NEVER
    for i in range(state.engine.running):
        state.running[i] = i
    for i in range(older.counts.scheduled):
        older.entries[i] = entries[OLDER, i]
    for i in range(newer.counts.scheduled):
        newer.entries[i] = entries[NEWER, i]
    for i in range(scratch.records[START].inputs):
        state.inputs[i] = scratch.inputs[START, i]
