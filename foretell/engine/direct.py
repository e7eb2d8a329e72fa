"""Forecasts from an engine that is at hand: no snapshot is made into objects and back.

The same numbers as `EngineBook` gives for the snapshot of the same engine, much sooner; a test
holds them together.
"""

from collections.abc import Sequence as Seq

import numpy as np

from foretell.engine.forecast import MARKS, Forecast, ascending, mean
from foretell.engine.timed import TimedTwin
from foretell.kernel.futures import RECORDS, Futures, Lengths, Room, Start
from foretell.kernel.layout import BLOCK, ENTRY, PLACE, SEQUENCE
from foretell.kernel.lengths import WIDTH
from foretell.kernel.pictures import COMING, KNOWN, Picture, forecast, photograph
from foretell.kernel.rollout import MARK
from foretell.kernel.step_time import StepTime
from foretell.model import EngineConfig

_SEED = 0  # as in `engine.forecast`
_MOST_SAMPLES = 8  # `engine.book.samples_behind`
_FIRST_CAPACITY = 192
_MOST_COMING = 64  # rows of requests on their way, at first; one row may stand for many sequences

ComingRow = tuple[float, float, int, int, int, int, int, int, tuple[float, ...]]
"""The fields of `kernel.pictures.COMING`."""


class Scratch:
    """What forecasts work on, one after the other: shared, so that it stays in the cache."""

    def __init__(self) -> None:
        self.records = np.zeros(1, RECORDS)
        self.room_records = np.zeros(1, RECORDS)
        self.watched = np.zeros(1, np.int32)
        self.blocks = np.zeros(0, BLOCK)
        self.places = np.zeros(0, PLACE)
        self.first_with = np.zeros(0, np.int32)
        self.coming = np.zeros(_MOST_COMING, COMING)
        self.futures: dict[tuple[int, int], Futures] = {}
        self.make_room(_FIRST_CAPACITY)

    def make_room(self, capacity: int) -> None:
        """For forecasts with so many requests."""
        self.capacity = capacity
        self.arrivals = np.zeros(capacity, np.int32)
        self.totals = np.zeros(_MOST_SAMPLES * capacity, np.int64)
        self.sequences = np.empty(capacity, SEQUENCE)
        self.running = np.empty(capacity, np.int32)
        self.older = np.empty(capacity, ENTRY)
        self.newer = np.empty(capacity, ENTRY)
        self.due = np.empty(capacity, np.int32)

    def futures_for(self, samples: int, marks: int, requests: int) -> Futures:
        """Arrays for the results."""
        found = self.futures.get((samples, marks))
        if found is None:
            found = self.futures[samples, marks] = Futures(
                np.empty((0, 0), np.int64),
                np.empty(marks, MARK),
                np.empty(samples),
                np.empty((samples, marks)),
                np.empty(2, np.int64),
            )
        return found._replace(totals=self.totals[: samples * requests].reshape(samples, requests))


class DirectForecaster:
    """What a predictor saw of an engine last."""

    def __init__(self, config: EngineConfig, scratch: Scratch) -> None:
        """`scratch` is for one thread."""
        self._scratch = scratch
        self._residues = np.zeros(config.block_size_tokens, np.int32)
        nobody = np.zeros(0, np.int32)
        no_step = np.zeros(0, ENTRY)
        self._picture = Picture(
            np.zeros(1, KNOWN),
            np.zeros(0, SEQUENCE),
            nobody,
            no_step,
            no_step,
            _blank_lengths(0),
            np.zeros(5, np.int64),
        )
        self._make_room(_FIRST_CAPACITY)
        self.requests = self.running = self.waiting_blocks = 0
        self.free_blocks = config.total_blocks
        self.certain = True
        """All lengths that are believed of its requests."""

    def take(self, twin: TimedTwin, believed: StepTime, now_s: float) -> None:
        """A snapshot of `twin`, taken `now_s`; steps are believed to take as `believed` says."""
        if twin.capacity > self._capacity:
            self._make_room(twin.capacity)
        photograph(twin.live, believed, twin.lengths, self._picture, now_s)
        self.requests, self.running, self.free_blocks, self.waiting_blocks, certain = (
            self._picture.figures.tolist()
        )
        self.certain = bool(certain)

    def forecast(
        self,
        model: StepTime,
        coming: Seq[ComingRow],
        now_s: float,
        *,
        samples: int,
        certain: bool,
        every_step_published: bool,
    ) -> Forecast:
        """What becomes of the last of those `coming`; as `Forecaster.forecast`.

        `certain`: its length is taken at its word.
        """
        scratch = self._scratch
        if len(coming) > len(scratch.coming):
            scratch.coming = np.zeros(2 * len(coming), COMING)
        arriving = 0
        for index, row in enumerate(coming):
            scratch.coming[index] = row
            arriving += row[2]
        requests = self.requests + arriving
        if requests > self._capacity:
            self._make_room(requests)
        if requests > scratch.capacity:
            scratch.make_room(2 * requests)
        futures = scratch.futures_for(samples, 1 if certain else MARKS, requests)
        forecast(
            self._picture,
            self._start(requests, arriving),
            self._room(),
            model,
            scratch.coming[: len(coming)],
            now_s,
            every_step_published,
            _SEED,
            futures,
        )
        return Forecast(
            ttft_s=ascending(now_s, futures.first_token_s),
            e2e_s=ascending(now_s, futures.last_token_s.ravel()),
            output_tokens=mean(futures.marks["tokens"]),
            preemptions=float(futures.counts[0]),
            steps=int(futures.counts[1]),
        )

    def _start(self, requests: int, arriving: int) -> Start:
        picture, scratch = self._picture, self._scratch
        return Start(
            scratch.records,
            picture.sequences[:requests],
            picture.running,
            scratch.blocks,
            scratch.places,
            scratch.first_with,
            picture.older,
            picture.newer,
            scratch.arrivals[:arriving],
            scratch.watched,
        )

    def _room(self) -> Room:
        scratch = self._scratch
        return Room(
            scratch.room_records,
            scratch.sequences,
            scratch.running,
            scratch.older,
            scratch.newer,
            scratch.due,
            self._residues,
        )

    def _make_room(self, capacity: int) -> None:
        """Room for `capacity` requests of the engine and some on their way; keeps the picture."""
        self._capacity = capacity = capacity + _FIRST_CAPACITY
        before, lengths = self._picture, _blank_lengths(capacity)
        picture = Picture(
            before.known,
            np.zeros(capacity, SEQUENCE),
            np.zeros(capacity, np.int32),
            np.zeros(capacity, ENTRY),
            np.zeros(capacity, ENTRY),
            lengths,
            before.figures,
        )
        for old, new in (
            *zip(before[1:5], picture[1:5], strict=True),
            *zip(before.lengths, lengths, strict=True),
        ):
            new[: len(old)] = old
        self._picture = picture


def _blank_lengths(capacity: int) -> Lengths:
    return Lengths(
        np.zeros((capacity, WIDTH)), np.zeros(capacity, np.int64), np.zeros(capacity, np.int64)
    )
