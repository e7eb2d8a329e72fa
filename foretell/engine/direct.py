"""Forecasts from engines that are at hand: no snapshot is made into objects and back.

The same numbers as `EngineBook` gives for a snapshot of the same engine, much sooner; a test holds
them together.
"""

from collections.abc import Sequence as Seq
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from foretell.engine.expected import EXPECTED_ID
from foretell.engine.externality import Added
from foretell.engine.forecast import MARKS, SEED, Forecast, Values
from foretell.engine.table import EngineTable
from foretell.engine.timed import TimedTwin
from foretell.kernel.endings import Endings
from foretell.kernel.forecasts import (
    ASKED,
    COMING,
    Answers,
    Coming,
    Costs,
    Desk,
    Gallery,
    cost,
    forecast,
)
from foretell.kernel.futures import RECORDS
from foretell.kernel.layout import BLOCK, ENTRY, PLACE, SEQUENCE
from foretell.kernel.lengths import WIDTH
from foretell.kernel.pictures import KNOWN
from foretell.kernel.rollout import MARK
from foretell.kernel.step_time import StepTime

_NO_MARKS = np.empty(0, MARK)
_MOST_SAMPLES = 8  # `engine.book.samples_behind`
_FIRST_CAPACITY = 256
_EXPECTED_KEY = crc32(EXPECTED_ID.encode())

ComingRow = tuple[float, float, int, int, int, int, int, tuple[float, ...]]
"""The fields of `kernel.forecasts.COMING`."""
Expected = tuple[int, int, int, int, float, float]
"""How many, their prompt and output tokens, blocks of the prompt that are cached, when the first
comes, and seconds to the next."""

NOBODY: Expected = (0, 1, 1, 0, 0.0, 0.0)


class Seen(NamedTuple):
    """What a picture says of an engine's load."""

    requests: int
    running: int
    free_blocks: int
    waiting_blocks: int
    """That the waiting requests need to be admitted."""
    certain: int
    """1: all lengths that are believed of its requests."""


Question = tuple[int, int, int, int, Seq[ComingRow], Expected]
"""One instance that a newcomer asks about: its index, how many requests its picture has, how many
rollouts to make of it, how many blocks of the newcomer's prompt are believed to be cached there,
who is reserved, who else is expected."""


class DirectForecaster:
    """The pictures of a cluster's engines, and forecasts from them. For one thread."""

    def __init__(self, table: EngineTable, instances: int, block_size_tokens: int) -> None:
        """`block_size_tokens` is the largest of any engine in `table`."""
        self._table = table
        self._instances = instances
        self._shown: list[int] = []
        self._residues = np.zeros(block_size_tokens, np.int32)
        self._expected = np.zeros(1, COMING)
        self._expected["key"] = _EXPECTED_KEY
        self._newcomer = np.zeros(1, COMING)
        self._answers: dict[tuple[int, int], Answers] = {}
        self._capacity = 0
        self._gallery = self._blank_gallery(0)
        self._make_room(_FIRST_CAPACITY)

    def show(self, index: int, twin: TimedTwin) -> None:
        """A snapshot of `twin` is due at the next `take`, before anything happens to it."""
        if twin.capacity > self._capacity:
            self._make_room(2 * twin.capacity)
        self._shown.append(index)

    def take(self, now_s: float) -> None:
        """All snapshots that are due."""
        if self._shown:
            self._table.take(self._gallery, np.array(self._shown), now_s)
            self._shown.clear()

    def seen(self, index: int) -> Seen:
        """What the latest snapshot shows."""
        return Seen._make(self._gallery.figures[index].tolist())

    def forecast(
        self,
        model: StepTime,
        questions: Seq[Question],
        newcomer: ComingRow,
        now_s: float,
        *,
        certain: bool,
        every_step_published: bool,
    ) -> list[Forecast]:
        """What becomes of `newcomer` on each of those asked about; as `Forecaster.forecast`.

        `certain`: its length is taken at its word. Instances with one step-time model.
        """
        asked, coming = self._ask(questions, newcomer)
        answers = self._answers_for(len(questions), 1 if certain else MARKS)
        forecast(
            self._gallery,
            self._desk,
            model,
            asked,
            coming,
            now_s,
            every_step_published,
            SEED,
            answers,
        )
        return _forecasts(questions, answers, now_s)

    def added(
        self,
        model: StepTime,
        questions: Seq[Question],
        newcomer: ComingRow,
        now_s: float,
        *,
        every_step_published: bool,
    ) -> list[Added]:
        """What `newcomer` costs the others on each of those asked about; as `Externality.added`."""
        asked, coming = self._ask(questions, newcomer)
        size = _MOST_SAMPLES * self._capacity
        without, beside = (
            Endings(np.empty(size, np.int64), np.empty(size), np.empty(size), _NO_MARKS)
            for _ in range(2)
        )
        costs = Costs(
            without,
            beside,
            np.empty((2, _MOST_SAMPLES)),
            np.empty((len(questions), 2)),
        )
        cost(
            self._gallery,
            self._desk,
            model,
            asked,
            coming,
            now_s,
            every_step_published,
            SEED,
            costs,
        )
        return [Added(*seconds) for seconds in costs.added_s.tolist()]

    def _ask(self, questions: Seq[Question], newcomer: ComingRow) -> tuple[Any, Coming]:
        """Rows of `ASKED`, and those that are coming; there is room for all of them."""
        most = first = 0
        asked: list[tuple[float, ...]] = []
        reserved: list[ComingRow] = []
        for index, requests, samples, hits, rows, expected in questions:
            last = first + len(rows)
            asked.append((index, samples, hits, first, last, *expected))
            reserved += rows
            most = max(most, requests + len(rows) + expected[0] + 1)
            first = last
        if most > self._capacity:
            self._make_room(2 * most)
        self._newcomer[0] = newcomer
        coming = Coming(np.array(reserved, COMING), self._expected, self._newcomer)
        return np.array(asked, ASKED), coming

    def _answers_for(self, asked: int, marks: int) -> Answers:
        found = self._answers.get((asked, marks))
        if found is None:
            found = self._answers[asked, marks] = Answers(
                np.zeros((asked, _MOST_SAMPLES)),
                np.zeros((asked, _MOST_SAMPLES, marks)),
                np.empty(marks, MARK),
                np.empty(asked),
                np.empty((asked, 2), np.int64),
            )
        return found

    def _make_room(self, capacity: int) -> None:
        """Room for `capacity` requests of every engine, those on their way included."""
        gallery = self._blank_gallery(capacity)
        gallery.known[:], gallery.figures[:] = self._gallery.known, self._gallery.figures
        arrays: list[tuple[Any, Any]] = list(zip(gallery[1:-1], self._gallery[1:-1], strict=True))
        for new, old in arrays:
            new[:, : self._capacity] = old
        self._gallery, self._capacity = gallery, capacity
        self._desk = Desk(
            np.zeros(2, RECORDS),
            np.empty(capacity, SEQUENCE),
            np.empty(capacity, np.int32),
            np.empty(capacity, ENTRY),
            np.empty(capacity, ENTRY),
            np.empty(capacity, np.int32),
            self._residues,
            np.zeros(capacity, np.int32),
            np.zeros(1, np.int32),
            np.zeros(_MOST_SAMPLES * capacity, np.int64),
            np.zeros(0, BLOCK),
            np.zeros(0, PLACE),
            np.zeros(0, np.int32),
        )

    def _blank_gallery(self, capacity: int) -> Gallery:
        shape = self._instances, capacity
        return Gallery(
            np.zeros(self._instances, KNOWN),
            np.zeros(shape, SEQUENCE),
            np.zeros(shape, np.int32),
            np.zeros(shape, ENTRY),
            np.zeros(shape, ENTRY),
            np.zeros((*shape, WIDTH)),
            np.zeros(shape, np.int64),
            np.zeros(shape, np.int64),
            np.zeros((self._instances, 5), np.int64),
        )


def _forecasts(questions: Seq[Question], answers: Answers, now_s: float) -> list[Forecast]:
    """The answers by themselves, in seconds from now."""
    first_s = np.maximum(answers.first_token_s - now_s, 0.0)
    last_s = np.maximum(answers.last_token_s - now_s, 0.0)
    counts, tokens = answers.counts.tolist(), answers.output_tokens.tolist()
    result = []
    one = last_s.shape[2] == 1
    firsts, lasts = first_s[:, 0].tolist(), last_s[:, 0, 0].tolist()
    for i, (_, _, samples, *_) in enumerate(questions):
        preemptions, steps = counts[i]
        ttft_s: Values = [firsts[i]]
        e2e_s: Values = [lasts[i]]
        if samples > 1 or not one:
            ttft_s, e2e_s = np.sort(first_s[i, :samples]), np.sort(last_s[i, :samples], axis=None)
        result.append(Forecast(ttft_s, e2e_s, tokens[i], float(preemptions), steps))
    return result
