"""Forecasts from pictures of many engines, in one call.

Each is what `engine.forecast.Forecaster` makes of a snapshot of the same engine.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.endings import Endings, sample_endings, sum_delays
from foretell.kernel.futures import Futures, Lengths, Room, Start, sample_futures
from foretell.kernel.jit import compiled
from foretell.kernel.layout import EXPECTED, NONE, Record
from foretell.kernel.lengths import WIDTH
from foretell.kernel.pictures import Picture
from foretell.kernel.step_time import StepTime

COMING = np.dtype(
    [
        ("at_s", np.float64),  # when it joins the queue
        ("every_s", np.float64),  # to the next of its kind, where there are several
        ("prompt", np.int64),
        ("max_tokens", np.int64),
        ("priority", np.int64),
        ("hits", np.int64),  # blocks
        ("key", np.int64),
        ("length", np.float64, (WIDTH,)),
    ],
    align=True,
)
"""A request on its way to the engine."""


ASKED = np.dtype(
    [
        ("index", np.int64),  # of the picture
        ("samples", np.int64),
        ("hits", np.int64),  # blocks of the newcomer's prompt that it has
        ("reserved_from", np.int64),  # rows of `Coming.reserved`
        ("reserved_to", np.int64),
        # Those that nobody has announced (`engine.expected`); of certain length.
        ("expected", np.int64),
        ("expected_prompt", np.int64),
        ("expected_output", np.int64),
        ("expected_hits", np.int64),
        ("expected_at_s", np.float64),
        ("expected_every_s", np.float64),
    ],
    align=True,
)
"""One instance that a newcomer asks about."""


class Gallery(NamedTuple):
    """The pictures of m engines, each with room for so many requests."""

    known: NDArray[np.void]
    """(m,) of `KNOWN`; all others have a second dimension, the requests."""
    sequences: NDArray[np.void]
    running: NDArray[np.int32]
    older: NDArray[np.void]
    newer: NDArray[np.void]
    rows: NDArray[np.float64]
    """And a third, `WIDTH`."""
    generated: NDArray[np.int64]
    keys: NDArray[np.int64]
    figures: NDArray[np.int64]
    """(m, 5): `Picture.figures`."""


class Desk(NamedTuple):
    """What forecasts work on, one after the other; so it stays in the cache."""

    records: NDArray[np.void]
    """(2,) of `RECORDS`: the start's and the room's."""
    sequences: NDArray[np.void]
    running: NDArray[np.int32]
    older: NDArray[np.void]
    newer: NDArray[np.void]
    due: NDArray[np.int32]
    residues: NDArray[np.int32]
    """As many as the largest block has tokens."""
    arrivals: NDArray[np.int32]
    watched: NDArray[np.int32]
    totals: NDArray[np.int64]
    blocks: NDArray[np.void]
    """These three are empty: a picture has no blocks with identity."""
    places: NDArray[np.void]
    first_with: NDArray[np.int32]


class Coming(NamedTuple):
    """Who is on the way, as rows of `COMING`."""

    reserved: NDArray[np.void]
    expected: NDArray[np.void]
    """(1,): room for those that nobody has announced."""
    newcomer: NDArray[np.void]
    """(1,): with one sequence."""


class Answers(NamedTuple):
    """For each of those asked, in their order; instants, infinite where they never come."""

    first_token_s: NDArray[np.float64]
    """(asked, most samples)."""
    last_token_s: NDArray[np.float64]
    """(asked, most samples, marks)."""
    marks: NDArray[np.void]
    """Of the newcomer's length, after the last of those asked."""
    output_tokens: NDArray[np.float64]
    """(asked,): their mean."""
    counts: NDArray[np.int64]
    """(asked, 2), as `Futures.counts`."""


@compiled
def picture_of(gallery: Gallery, index: int) -> Picture:
    """One engine's."""
    return Picture(
        gallery.known[index : index + 1],
        gallery.sequences[index],
        gallery.running[index],
        gallery.older[index],
        gallery.newer[index],
        Lengths(gallery.rows[index], gallery.generated[index], gallery.keys[index]),
        gallery.figures[index],
    )


@compiled
def forecast(
    gallery: Gallery,
    desk: Desk,
    model: StepTime,
    asked: NDArray[np.void],
    coming: Coming,
    now_s: float,
    every_step: bool,
    seed: int,
    answers: Answers,
) -> None:
    """What becomes of the newcomer on each of the instances `asked`, whose steps are as `model`.

    `every_step` is explained at `engine.forecast.Forecaster.prepare`.
    """
    for i in range(len(asked)):
        ask, index = asked[i], asked[i].index
        count = ask.reserved_to - ask.reserved_from + ask.expected + 1
        requests = gallery.known[index].requests + count
        start, room = _start(gallery, desk, index, count, 1), _room(desk)
        lengths = Lengths(gallery.rows[index], gallery.generated[index], gallery.keys[index])
        futures = Futures(
            desk.totals[: ask.samples * requests].reshape(ask.samples, requests),
            answers.marks,
            answers.first_token_s[i][: ask.samples],
            answers.last_token_s[i][: ask.samples],
            answers.counts[i],
        )
        known = gallery.known[index : index + 1]
        _set_clock(known, now_s, every_step)
        start.records[0] = known[0].at
        _expect_all(start, lengths, ask, coming, known[0].requests)
        _sort_arrivals(start, known[0].requests)
        start.watched[0] = requests - 1
        sample_futures(start, room, model, lengths, seed, futures)
        tokens = 0.0
        for mark in answers.marks:
            tokens += mark.tokens
        answers.output_tokens[i] = tokens / len(answers.marks)


class Costs(NamedTuple):
    """What a newcomer costs the others, and room to find out."""

    without: Endings
    beside: Endings
    """Of flat arrays, with room for the most samples of all requests."""
    delays_s: NDArray[np.float64]
    """(2, most samples)."""
    added_s: NDArray[np.float64]
    """(asked, 2): seconds added to first and to last tokens, as `engine.externality.Added`."""


@compiled
def cost(
    gallery: Gallery,
    desk: Desk,
    model: StepTime,
    asked: NDArray[np.void],
    coming: Coming,
    now_s: float,
    every_step: bool,
    seed: int,
    costs: Costs,
) -> None:
    """What the newcomer adds to the latencies of others on each of the instances `asked`.

    As `engine.externality` has it: nobody is expected but those who are on their way.
    """
    for i in range(len(asked)):
        ask = asked[i]
        others = gallery.known[ask.index].requests + ask.reserved_to - ask.reserved_from
        first_s, last_s = costs.delays_s[0][: ask.samples], costs.delays_s[1][: ask.samples]
        ends = (
            _shaped(costs.without, ask.samples, others),
            _shaped(costs.beside, ask.samples, others + 1),
        )
        for newcomers in range(2):
            _end(
                gallery, desk, model, ask, coming, now_s, every_step, seed, newcomers,
                ends[newcomers],
            )  # fmt: skip
        sum_delays(ends[0].first_token_s, ends[1].first_token_s, others, first_s)
        sum_delays(ends[0].last_token_s, ends[1].last_token_s, others, last_s)
        costs.added_s[i, 0], costs.added_s[i, 1] = first_s.mean(), last_s.mean()


@compiled
def _end(
    gallery: Gallery,
    desk: Desk,
    model: StepTime,
    ask: Record,
    coming: Coming,
    now_s: float,
    every_step: bool,
    seed: int,
    newcomers: int,
    endings: Endings,
) -> None:
    """Fill `endings` of who is there, who is on the way, and of so many newcomers, 0 or 1."""
    index = ask.index
    first = slot = gallery.known[index].requests
    count = ask.reserved_to - ask.reserved_from + newcomers
    start = _start(gallery, desk, index, count, 0)
    lengths = Lengths(gallery.rows[index], gallery.generated[index], gallery.keys[index])
    known = gallery.known[index : index + 1]
    _set_clock(known, now_s, every_step)
    start.records[0] = known[0].at
    for j in range(ask.reserved_from, ask.reserved_to):
        _expect(start, lengths, coming.reserved[j], 0, slot)
        slot += 1
    if newcomers:
        _expect(start, lengths, coming.newcomer[0], 0, slot)
        start.sequences[slot].hits = ask.hits
    _sort_arrivals(start, first)
    sample_endings(start, _room(desk), model, lengths, seed, endings)


@compiled
def _shaped(endings: Endings, samples: int, requests: int) -> Endings:
    size = samples * requests
    return Endings(
        endings.totals[:size].reshape(samples, requests),
        endings.first_token_s[:size].reshape(samples, requests),
        endings.last_token_s[:size].reshape(samples, requests),
        endings.marks,
    )


@compiled
def _start(gallery: Gallery, desk: Desk, index: int, count: int, watched: int) -> Start:
    """Of one engine to which `count` requests are coming, of which so many are `watched`."""
    requests = gallery.known[index].requests + count
    return Start(
        desk.records[:1],
        gallery.sequences[index][:requests],
        gallery.running[index],
        desk.blocks,
        desk.places,
        desk.first_with,
        gallery.older[index],
        gallery.newer[index],
        desk.arrivals[:count],
        desk.watched[:watched],
    )


@compiled
def _room(desk: Desk) -> Room:
    return Room(
        desk.records[1:],
        desk.sequences,
        desk.running,
        desk.older,
        desk.newer,
        desk.due,
        desk.residues,
    )


@compiled
def _expect_all(start: Start, lengths: Lengths, ask: Record, coming: Coming, slot: int) -> None:
    """From `slot` on: the reserved, those expected, the newcomer."""
    for j in range(ask.reserved_from, ask.reserved_to):
        _expect(start, lengths, coming.reserved[j], 0, slot)
        slot += 1
    typical = coming.expected[0]
    typical.at_s, typical.every_s = ask.expected_at_s, ask.expected_every_s
    typical.prompt, typical.max_tokens = ask.expected_prompt, ask.expected_output
    typical.hits = ask.expected_hits
    for j in range(WIDTH - 1):
        typical.length[j] = ask.expected_output
    for j in range(ask.expected):
        _expect(start, lengths, typical, j, slot)
        slot += 1
    _expect(start, lengths, coming.newcomer[0], 0, slot)
    start.sequences[slot].hits = ask.hits


@compiled
def _sort_arrivals(start: Start, first: int) -> None:
    """A stable insertion sort of the slots from `first` on: they are few and all but sorted."""
    for i in range(len(start.arrivals)):
        slot, place = first + i, i
        at_s = start.sequences[slot].arrival_s
        while place > 0 and start.sequences[start.arrivals[place - 1]].arrival_s > at_s:
            start.arrivals[place] = start.arrivals[place - 1]
            place -= 1
        start.arrivals[place] = slot


@compiled
def _expect(start: Start, lengths: Lengths, coming: Record, index: int, slot: int) -> None:
    """As `Forecaster._expect`."""
    row, longest = start.sequences[slot], start.records[0].engine.max_model_len
    row.arrival_s = coming.at_s + index * coming.every_s
    row.first_token_s = row.finished_s = np.inf
    row.next = row.previous = NONE
    row.status, row.priority, row.hits = EXPECTED, coming.priority, coming.hits
    row.prompt, row.max_tokens = min(coming.prompt, longest - 1), min(coming.max_tokens, longest)
    row.output = row.computed = row.blocks = row.placeholders = row.in_flight = row.stop_after = 0
    row.cached = row.stale = row.committed = row.place = row.entered = row.last = row.end = 0
    row.preemptions = row.noted = 0
    lengths.keys[slot], lengths.generated[slot] = coming.key + index, 0
    for i in range(WIDTH):
        lengths.rows[slot, i] = coming.length[i]


@compiled
def _set_clock(known_one: NDArray[np.void], now_s: float, every_step: bool) -> None:
    """As `Forecaster._set_clock`."""
    known = known_one[0]
    clock = known.at.clock
    clock.now_s = now_s if every_step else known.taken_s
    first_s = last_s = clock.now_s
    end_s = known.begun_s
    for i in range(known.steps):
        end_s += known.steps_s[i]
        if every_step:
            end_s = max(end_s, now_s)
        if i == 0:
            first_s = end_s
        last_s = end_s
    clock.first_end_s = first_s if clock.in_flight > 1 else last_s
    clock.last_end_s = last_s
