"""Forecasts from snapshots of engines: when a new request would get its first and its last token.

One compiled call answers for all the engines that a new request asks about.
"""

from collections.abc import Sequence as Seq
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.engine.arrays import engine_record, new_costs, new_rows
from foretell.engine.published import offline_blocks
from foretell.engine.questions import (
    EngineQuestion,
    ExpectedArrival,
    Figures,
    Forecast,
    Values,
    forecasts,
    is_certain,
    key_of,
    rows_of,
)
from foretell.kernel.forecasts import (
    RECORDS,
    Answers,
    Costs,
    Scratch,
    cost,
    follow_others,
    forecast,
)
from foretell.kernel.layout import BLOCK, ENTRY, INPUT, MARK, PLACE
from foretell.kernel.snapshot_rows import REQUEST, SNAPSHOT, Snapshots
from foretell.kernel.step_time import COEFFICIENTS, StepTime, StepTimes
from foretell.kernel.tables import LAYOUT_WIDTH, TABLES
from foretell.model import EngineConfig

MARKS = 8
"""The number of equally likely lengths of a new request whose length is uncertain."""
MOST_SAMPLES = 8
SEED = 0
"""Seed of all drawn lengths: the same in every forecast, so that requests keep their lengths."""
_FIRST_CAPACITY = 256
_MOST_STEPS = 4096
"""The number of steps for which a rank takes the other ranks of its deployment into account."""


class ForecastCall(NamedTuple):
    """The arguments of one compiled forecast."""

    snapshots: Snapshots
    scratch: Scratch
    models: StepTimes
    questions: bytes
    arrivals: bytes
    now_s: float
    seed: int
    answers: Answers

    def run(self) -> None:
        """Fill `answers`. Idempotent."""
        forecast(*self)


class Forecaster:
    """The snapshots of some engines, and forecasts from them. For one thread."""

    def __init__(self, engines: int = 1) -> None:
        self._engines = engines
        self._answers: dict[tuple[int, int], Answers] = {}
        self._models = StepTimes(
            np.zeros((engines, COEFFICIENTS)),
            np.zeros(engines, np.int64),
            np.zeros((0, 0)),
            np.zeros((0, TABLES, LAYOUT_WIDTH), np.int64),
            np.full(engines, -1),
            np.zeros((engines, 0)),
            np.zeros(engines, np.int64),
            np.zeros(engines),
            np.zeros(0),
        )
        self._tables: list[StepTime] = []
        self._costs: Costs | None = None
        self._residues = np.zeros((2, 1), np.int32)
        self._capacity = self._most_shown = 0
        self.snapshots = Snapshots(
            np.zeros(engines, SNAPSHOT),
            np.zeros((engines, 0), REQUEST),
            np.zeros((engines, 0), INPUT),
        )
        self._grow(_FIRST_CAPACITY)

    def make_room(self, requests: int) -> None:
        """Make room for snapshots of that many requests, and for as many on their way."""
        if requests > self._most_shown:
            self._most_shown = requests
            self._grow(2 * requests)

    def _grow(self, capacity: int) -> None:
        """Make room for `capacity` requests of every engine, those on their way included."""
        if capacity <= self._capacity:
            return
        rows = np.zeros((self._engines, capacity), REQUEST)
        rows[:, : self._capacity] = self.snapshots.requests
        self.snapshots, self._capacity = self.snapshots._replace(requests=rows), capacity
        self._costs = None
        self._look_at_bytes()
        self.scratch = self._new_scratch()

    def add(self) -> int:
        """Add an engine and return its index. Prepared calls become invalid."""
        self._engines += 1
        snapshots, models, room = self.snapshots, self._models, (0, 1)
        self.snapshots = Snapshots(
            np.pad(snapshots.headers, room),
            np.pad(snapshots.requests, (room, (0, 0))),
            np.pad(snapshots.inputs, (room, (0, 0))),
        )
        self._models = models._replace(
            coefficients=np.pad(models.coefficients, (room, (0, 0))),
            tables=np.pad(models.tables, room),
            deployments=np.pad(models.deployments, room, constant_values=-1),
            own_s=np.pad(models.own_s, (room, (0, 0))),
            steps=np.pad(models.steps, room),
            first_end_s=np.pad(models.first_end_s, room),
        )
        self._costs = None
        self._look_at_bytes()
        return self._engines - 1

    def describe(self, index: int, config: EngineConfig) -> None:
        """Set the configuration of engine `index`, which is idle until its first snapshot."""
        header = self.snapshots.headers[index : index + 1]
        header["engine"], header["steps"] = engine_record(config), 0
        header["contents"] = header["inputs"] = 0
        header["version"] += 1
        header["figures"] = (0, 0, config.total_blocks, 0, 1)
        self._step_with(index, config.steps_with)
        if config.block_size_tokens > self._residues.shape[1]:
            self._residues = np.zeros((2, config.block_size_tokens), np.int32)
            self.scratch = self._new_scratch()

    def forget(self, index: int) -> None:
        """Remove engine `index`; its place may be used again after `describe`."""
        self._step_with(index, "")

    def _step_with(self, index: int, deployment: str) -> None:
        models, number = self._models, -1
        if deployment:
            number = key_of(deployment)
            if not len(models.others_s):
                room = np.zeros((self._engines, _MOST_STEPS))
                self._models = models._replace(own_s=room, others_s=np.zeros(_MOST_STEPS))
        self._models.deployments[index] = number

    def believe(self, index: int, model: StepTime) -> None:
        """Set the step-time model of engine `index`."""
        self._models.coefficients[index] = model.coefficients
        place = self._table_place(model)
        self._models.tables[index] = place

    def _table_place(self, model: StepTime) -> int:
        """The place of the model's tables among those of all engines."""
        for place, known in enumerate(self._tables):
            if known.values is model.values and known.layout is model.layout:
                return place
        self._tables.append(model)
        self._stack_tables()
        return len(self._tables) - 1

    def _stack_tables(self) -> None:
        most = max(len(model.values) for model in self._tables)
        values = np.zeros((len(self._tables), most))
        for row, model in zip(values, self._tables, strict=True):
            row[: len(model.values)] = model.values
        layout = np.stack([model.layout for model in self._tables])
        self._models = self._models._replace(values=values, layout=layout)

    def put(
        self,
        index: int,
        header: bytes,
        requests: bytes,
        inputs: bytes,
        shift_s: float,
    ) -> None:
        """Make these rows (one of `SNAPSHOT`; of `REQUEST`; of `INPUT`) the snapshot of engine
        `index`, with `shift_s` added to all instants."""
        count = len(requests) // REQUEST.itemsize
        self.make_room(count)
        version, at = self._versions[index] + 1, index * SNAPSHOT.itemsize
        # As bytes: numpy copies records field by field.
        self._header_bytes[at : at + len(header)] = header
        at = index * self._capacity * REQUEST.itemsize
        self._request_bytes[at : at + len(requests)] = requests
        self._versions[index] = version
        if shift_s:
            self.snapshots.headers["begun_s"][index] += shift_s
            self.snapshots.requests["arrival_s"][index, :count] += shift_s
        if inputs:
            self._put_inputs(index, np.frombuffer(inputs, INPUT))

    def _put_inputs(self, index: int, rows: NDArray[np.void]) -> None:
        count, known = len(rows), self.snapshots
        if count > known.inputs.shape[1]:
            more = np.zeros((self._engines, 2 * count), INPUT)
            more[:, : known.inputs.shape[1]] = known.inputs
            self.snapshots = known._replace(inputs=more)
            self.scratch = self._new_scratch()
        self.snapshots.inputs[index, :count] = rows

    def _look_at_bytes(self) -> None:
        """Renew the views of the arrays of `snapshots`, which were replaced."""
        headers, requests = self.snapshots.headers, self.snapshots.requests
        self._header_bytes = headers.view(np.uint8).reshape(-1).data
        self._request_bytes = requests.view(np.uint8).reshape(-1).data
        self._versions, self._known_s = headers["version"], headers["known_s"]
        self._figures = headers["figures"]

    def still_true(self, index: int, known_s: float) -> None:
        """Note that the snapshot of engine `index` shows all that happened until `known_s`."""
        self._known_s[index] = known_s

    def figures(self, index: int) -> Figures:
        """The load that an engine's snapshot shows."""
        return Figures(*self._figures[index].tolist())

    def offline_blocks(self, index: int) -> int:
        """KV blocks of the offline requests that run on an engine that co-schedules."""
        return offline_blocks(self.snapshots.requests[index, : self.figures(index).running])

    def prepare(
        self,
        questions: Seq[EngineQuestion],
        new_request: ExpectedArrival,
        now_s: float,
    ) -> ForecastCall:
        """Return the arguments of a forecast, to be run later; valid until the next call."""
        rows, arrivals = self._rows(questions, new_request)
        return ForecastCall(
            self.snapshots,
            self.scratch,
            self._models,
            rows,
            arrivals,
            now_s,
            SEED,
            self._answers_for(len(questions), 1 if is_certain(new_request.length) else MARKS),
        )

    def forecast(
        self,
        questions: Seq[EngineQuestion],
        new_request: ExpectedArrival,
        now_s: float,
        *,
        externality: bool = False,
    ) -> list[Forecast]:
        """Forecast `new_request` on each of the engines asked about, and with `externality` also
        its cost to the other requests there. The other arguments are those of `prepare`."""
        call = self.prepare(questions, new_request, now_s)
        call.run()
        added: Seq[Seq[float] | None] = [None] * len(questions)
        if externality:
            costs = self._costs_for(len(questions))
            cost(*call[:-1], costs)
            added = costs.added_s[: len(questions)].tolist()
        return forecasts(questions, call.answers, added, now_s)

    def wait_s(
        self,
        question: EngineQuestion,
        waiting: ExpectedArrival,
        now_s: float,
    ) -> float | None:
        """Mean seconds until the first token of `waiting`, a request of one sequence; None unless
        it is known to be on its way to the engine or waiting in its queue."""
        slot = self._waiting_slot(question, waiting.key)
        if slot is None:
            return None
        firsts_s, _ = self.futures_s(question, waiting, now_s)
        return max(0.0, float(firsts_s[slot]) - now_s)

    def futures_s(
        self,
        question: EngineQuestion,
        new_request: ExpectedArrival,
        now_s: float,
    ) -> tuple[Values, Values]:
        """When each request of the engine gets its first and its last token, without `new_request`.

        Mean instants, two arrays (requests,): the requests of the snapshot in its order, then those
        on their way. Infinite for a first token that came before the snapshot.
        """
        call, costs = self.prepare((question,), new_request, now_s), self._costs_for(1)
        count = follow_others(*call[:-1], costs)
        found = costs.without_s[:, question.engine, : question.samples * count]
        first_s, last_s = found.reshape(2, question.samples, count).mean(axis=1)
        return first_s, last_s

    def has_begun(self, index: int, key: int) -> bool:
        """Whether the snapshot shows that the engine has begun to compute that request."""
        figures = self.figures(index)
        rows = self.snapshots.requests[index, : figures.requests]
        begun = (rows["output"] > 0) | (np.arange(figures.requests) < figures.running)
        return bool(np.any(begun & (rows["key"] == key)))

    def _waiting_slot(self, question: EngineQuestion, key: int) -> int | None:
        """The slot in rollouts of a request that waits in the queue or is on its way; or None."""
        figures = self.figures(question.engine)
        rows = self.snapshots.requests[question.engine, figures.running : figures.requests]
        found = np.flatnonzero((rows["key"] == key) & (rows["output"] == 0))  # not preempted
        if len(found):
            return figures.running + int(found[0])
        slot = figures.requests
        for row in question.announced:
            if row.key == key:
                return slot
            slot += row.sequences
        return None

    def _rows(
        self, questions: Seq[EngineQuestion], new_request: ExpectedArrival
    ) -> tuple[bytes, bytes]:
        """Return `rows_of` these, and make room for them."""
        rows, arrivals, sequences = rows_of(questions, new_request)
        if self._most_shown + sequences > self._capacity:
            self._grow(2 * (self._most_shown + sequences))
        return rows, arrivals

    def _costs_for(self, asked: int) -> Costs:
        if self._costs is None or len(self._costs.added_s) < asked:
            self._costs = new_costs(max(asked, self._engines), MOST_SAMPLES * self._capacity)
        return self._costs

    def _answers_for(self, asked: int, marks: int) -> Answers:
        found = self._answers.get((asked, marks))
        if found is None:
            found = self._answers[asked, marks] = Answers(
                np.zeros((asked, MOST_SAMPLES)),
                np.zeros((asked, MOST_SAMPLES, marks)),
                np.empty(marks, MARK),
                np.empty((asked, 4)),
                np.empty((asked, 1), np.int64),
            )
        return found

    def _new_scratch(self) -> Scratch:
        capacity = self._capacity
        return Scratch(
            np.zeros(3, RECORDS),
            new_rows(3 * capacity).reshape(3, capacity),
            np.zeros((2, 2, capacity), ENTRY),
            np.zeros((4, capacity), np.int32),
            self._residues,
            np.zeros(MOST_SAMPLES * capacity, np.int64),
            np.zeros(0, BLOCK),
            np.zeros(0, PLACE),
            np.zeros((2, self.snapshots.inputs.shape[1]), INPUT),
        )
