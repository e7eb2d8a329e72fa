"""Forecasts from pictures of many engines, in one call.

Each question asks what becomes of one newcomer on one engine. The arrivals of a call are rows of
`pictures.ARRIVAL`: for each question those that are on their way to its engine, then those that are
expected there though nobody has announced them, and behind all of them the newcomer.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.futures import Futures, sample_futures
from foretell.kernel.jit import compiled
from foretell.kernel.layout import Record
from foretell.kernel.offline import OFFLINE_PRIORITY
from foretell.kernel.pictures import REQUESTS, Pictures
from foretell.kernel.start import (
    START,
    Scratch,
    draw_arrival,
    draw_requests,
    expect,
    restore,
    set_clock,
    sort_arrivals,
)
from foretell.kernel.step_time import StepTime, StepTimes, model_at

QUESTION = np.dtype(
    [
        ("picture", np.int64),
        ("samples", np.int64),  # rollouts, each with other output lengths
        ("cached_tokens", np.int64),  # of the newcomer's prompt, as is believed
        ("first", np.int64),  # the first arrival that is on its way to this engine
        ("announced", np.int64),  # behind the last of those that somebody announced
        ("end", np.int64),  # behind the last of those that are expected besides
        ("version", np.int64),  # of the picture, the announced arrivals and the model together
        ("delay_s", np.float64),  # from `at_s` of those announced, and the newcomer, to its queue
    ],
    align=True,
)
"""One engine that a newcomer asks about."""


class Answers(NamedTuple):
    """The newcomer's future on each of q engines: instants, infinite where they never come."""

    first_token_s: NDArray[np.float64]
    """(q, most samples)."""
    last_token_s: NDArray[np.float64]
    """(q, most samples, marks)."""
    marks: NDArray[np.void]
    """(marks,): rows of `rollout.MARK` for the newcomer's length on the last of the engines."""
    means: NDArray[np.float64]
    """(q, 3): seconds from now to the first and to the last token, and output tokens: means over
    the samples and the marks."""
    counts: NDArray[np.int64]
    """(q, 2): `Futures.counts` of each engine."""


@compiled
def forecast(
    pictures: Pictures,
    scratch: Scratch,
    models: StepTimes,
    questions: NDArray[np.void],
    arrivals: NDArray[np.void],
    now_s: float,
    every_step: bool,
    seed: int,
    answers: Answers,
) -> None:
    """Fill `answers` to `questions`, rows of `QUESTION`; `models` are of the pictures' engines.

    `every_step` is explained at `start.set_clock`.
    """
    newcomer = arrivals[-1]
    for i in range(len(questions)):
        question = questions[i]
        model = model_at(models, question.picture)
        known = pictures.headers[question.picture].figures[REQUESTS]
        count = known + _sequences(arrivals, question.first, question.end) + newcomer.sequences
        totals = scratch.totals[: question.samples * count].reshape(question.samples, count)
        _begin(
            pictures, scratch, model, question, question.end, arrivals, True, now_s, every_step,
            seed, totals,
        )  # fmt: skip
        futures = Futures(
            totals,
            answers.marks,
            answers.first_token_s[i][: question.samples].reshape(question.samples, 1),
            answers.last_token_s[i][: question.samples],
            answers.counts[i],
        )
        sample_futures(scratch, model, count - known, newcomer.sequences, newcomer.length, futures)
        _average(answers, i, question.samples, now_s)


@compiled
def _average(answers: Answers, i: int, samples: int, now_s: float) -> None:
    """Fill row `i` of `answers.means`."""
    first_s = last_s = tokens = 0.0
    marks = len(answers.marks)
    for sample in range(samples):
        first_s += max(0.0, answers.first_token_s[i, sample] - now_s)
        for mark in range(marks):
            last_s += max(0.0, answers.last_token_s[i, sample, mark] - now_s)
    for mark in range(marks):
        tokens += answers.marks[mark].tokens
    answers.means[i, 0] = first_s / samples
    answers.means[i, 1] = last_s / (samples * marks)
    answers.means[i, 2] = tokens / marks


KEPT = np.dtype(
    [
        ("version", np.int64),
        ("samples", np.int64),
        ("now_s", np.float64),  # where a step may be scheduled now; otherwise it does not matter
        ("first_end_s", np.float64),
        ("last_end_s", np.float64),
        ("made", np.int64),  # how often the rollouts have been made
    ]
)
"""The state on which rollouts without a newcomer depended when they were last made."""


class Costs(NamedTuple):
    """The cost of a newcomer to the others on each of q engines, and memory to compute it."""

    kept: NDArray[np.void]
    """(pictures,): rows of `KEPT`."""
    without_s: NDArray[np.float64]
    """(2, pictures, most samples * most requests): first and last tokens of rollouts without the
    newcomer, kept from call to call."""
    beside_s: NDArray[np.float64]
    """(2, 1, most samples * most requests): the same with it, of one engine at a time."""
    marks: NDArray[np.void]
    """(0,) of `rollout.MARK`."""
    counts: NDArray[np.int64]
    """(2,): not looked at."""
    added_s: NDArray[np.float64]
    """(q, 2): seconds by which first tokens and last tokens of others come later, summed over the
    others and averaged over the samples. Negative where the newcomer happens to help, as it may by
    a preemption that it prevents; infinite where it keeps somebody from ever running."""


@compiled
def cost(
    pictures: Pictures,
    scratch: Scratch,
    models: StepTimes,
    questions: NDArray[np.void],
    arrivals: NDArray[np.void],
    now_s: float,
    every_step: bool,
    seed: int,
    costs: Costs,
) -> None:
    """Fill `costs.added_s` for `questions`, rows of `QUESTION`; the others as for `forecast`.

    A newcomer delays others in three ways: it takes tokens of a step's budget, so that prompts
    behind it are computed later; it makes every step longer that it takes part in; and it takes
    blocks and a seat, so that others are admitted later or preempted.

    The economists' externality: who is placed pays for its own latency, the others pay the rest.
    Offline requests pay nothing for an online one: nobody waits for them. Otherwise online requests
    would all meet on the engine where they hold offline work up already.
    Both runs of an engine use the same lengths for the same requests, so that their difference is
    the newcomer's doing and no accident of the draw. Nobody is expected but those who were
    announced: who may come later is not there to be delayed, and will be placed where it suits.
    """
    newcomers, rows = arrivals[-1].sequences, scratch.sequences[START]
    spares_offline = arrivals[-1].priority != OFFLINE_PRIORITY
    for i in range(len(questions)):
        question = questions[i]
        others = _follow(
            pictures, scratch, models, question, arrivals, 0, now_s, every_step, seed, costs
        )
        _follow(
            pictures, scratch, models, question, arrivals, newcomers, now_s, every_step, seed, costs
        )
        index, samples = question.picture, question.samples
        for which in range(2):
            without_s, beside_s = costs.without_s[which, index], costs.beside_s[which, 0]
            costs.added_s[i, which] = _mean_delay_s(
                without_s, beside_s, samples, rows[:others], others + newcomers, spares_offline
            )


@compiled
def follow_others(
    pictures: Pictures,
    scratch: Scratch,
    models: StepTimes,
    questions: NDArray[np.void],
    arrivals: NDArray[np.void],
    now_s: float,
    every_step: bool,
    seed: int,
    costs: Costs,
) -> int:
    """Fill `costs.without_s` for the only one of `questions`; the arguments are those of `cost`.

    Returns the number of requests that were followed.
    """
    return _follow(
        pictures, scratch, models, questions[0], arrivals, 0, now_s, every_step, seed, costs
    )


@compiled
def _follow(
    pictures: Pictures,
    scratch: Scratch,
    models: StepTimes,
    question: Record,
    arrivals: NDArray[np.void],
    newcomers: int,
    now_s: float,
    every_step: bool,
    seed: int,
    costs: Costs,
) -> int:
    """Follow all requests of an engine to their ends, `newcomers` among them; their number.

    What is known without newcomers already is not computed again.
    """
    index, samples = question.picture, question.samples
    model = model_at(models, index)
    arriving = _sequences(arrivals, question.first, question.announced) + newcomers
    count = pictures.headers[index].figures[REQUESTS] + arriving
    totals = scratch.totals[: samples * count].reshape(samples, count)
    _begin(
        pictures, scratch, model, question, question.announced, arrivals, newcomers > 0,
        now_s, every_step, seed, totals,
    )  # fmt: skip
    if newcomers == 0 and not _is_new(costs.kept[index], question, scratch.records[START]):
        return count
    seconds, row = (costs.beside_s, 0) if newcomers > 0 else (costs.without_s, index)
    futures = Futures(
        totals,
        costs.marks,
        seconds[0, row, : samples * count].reshape(samples, count),
        seconds[1, row, : samples * count].reshape(samples, count),
        costs.counts,
    )
    sample_futures(scratch, model, arriving, 0, arrivals[-1].length, futures)
    return count


@compiled
def _sequences(arrivals: NDArray[np.void], first: int, end: int) -> int:
    count = 0
    for i in range(first, end):
        count += arrivals[i].sequences
    return count


@compiled
def _begin(
    pictures: Pictures,
    scratch: Scratch,
    model: StepTime,
    question: Record,
    end: int,
    arrivals: NDArray[np.void],
    with_newcomer: bool,
    now_s: float,
    every_step: bool,
    seed: int,
    totals: NDArray[np.int64],
) -> None:
    """Write the engine with the arrivals up to `end` to `scratch`, and draw their lengths."""
    index = question.picture
    restore(pictures, index, scratch)
    set_clock(pictures, index, model, now_s, every_step, scratch)
    draw_requests(pictures, index, seed, totals)
    first = slot = pictures.headers[index].figures[REQUESTS]
    for j in range(question.first, end):
        arrival = arrivals[j]
        delay_s = question.delay_s if j < question.announced else 0.0
        expect(scratch, arrival, delay_s, arrival.cached_tokens, slot)
        draw_arrival(arrival, seed, totals, slot)
        slot += arrival.sequences
    if with_newcomer:
        newcomer = arrivals[-1]
        expect(scratch, newcomer, question.delay_s, question.cached_tokens, slot)
        draw_arrival(newcomer, seed, totals, slot)
        slot += newcomer.sequences
    sort_arrivals(scratch, first, slot)


@compiled
def _is_new(kept: Record, question: Record, start: Record) -> bool:
    """Whether rollouts without a newcomer may differ from those kept; if so, note the new state."""
    clock = start.clock
    now_s = clock.now_s if clock.in_flight < start.engine.depth else 0.0
    if (
        kept.version == question.version
        and kept.samples == question.samples
        and kept.now_s == now_s
        and kept.first_end_s == clock.first_end_s
        and kept.last_end_s == clock.last_end_s
    ):
        return False
    kept.version, kept.samples, kept.now_s = question.version, question.samples, now_s
    kept.first_end_s, kept.last_end_s = clock.first_end_s, clock.last_end_s
    kept.made += 1
    return True


@compiled
def _mean_delay_s(
    without_s: NDArray[np.float64],
    beside_s: NDArray[np.float64],
    samples: int,
    others: NDArray[np.void],
    requests: int,
    spares_offline: bool,
) -> float:
    """Seconds by which `others`, rows of `layout.SEQUENCE`, come later in `beside_s` than in
    `without_s`; without the offline ones if `spares_offline`.

    Both are flat: `beside_s` is (samples, requests), `without_s` (samples, others). The sum over
    the others is averaged over the samples. What never comes without the newcomer either is not its
    doing; what it alone prevents is infinitely late.
    """
    count = len(others)
    total_s = 0.0
    for sample in range(samples):
        delay_s = 0.0
        for slot in range(count):
            if spares_offline and others[slot].priority == OFFLINE_PRIORITY:
                continue
            alone_s = without_s[sample * count + slot]
            if alone_s < np.inf:
                delay_s += beside_s[sample * requests + slot] - alone_s
        total_s += delay_s
    return total_s / samples
