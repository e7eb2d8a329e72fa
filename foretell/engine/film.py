"""Forecasts from an engine that is at hand: no snapshot is made into objects and back.

The same numbers as `EngineBook` gives for the engine's snapshot, in a tenth of the time; a test
holds them together.
"""

from collections.abc import Sequence as Seq

import numpy as np

from foretell.engine.forecast import MARKS, Forecast
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


class Film:
    """What a predictor saw of an engine last."""

    def __init__(self, config: EngineConfig) -> None:
        self._nothing = (np.zeros(0, BLOCK), np.zeros(0, PLACE), np.zeros(0, np.int32))
        self._records = np.zeros(1, RECORDS)
        self._room_records = np.zeros(1, RECORDS)
        self._residues = np.zeros(config.block_size_tokens, np.int32)
        self._watched = np.zeros(1, np.int32)
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
        self._coming = np.zeros(_MOST_COMING, COMING)
        self._futures: dict[tuple[int, int], Futures] = {}
        self._make_room(_FIRST_CAPACITY)
        self.requests = self.running = self.waiting_blocks = 0
        self.free_blocks = config.total_blocks
        self.certain = True
        """All lengths that are believed of its requests."""

    def take(self, twin: TimedTwin, believed: StepTime, now_s: float) -> None:
        """A snapshot of `twin`, taken `now_s`; steps are believed to take as `believed` says."""
        if twin.capacity > self._capacity:
            self._make_room(twin.capacity)
        photograph(twin.live, believed, twin.lengths, self._picture)
        self._picture.known["taken_s"] = now_s
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
        if len(coming) > len(self._coming):
            self._coming = np.zeros(2 * len(coming), COMING)
        for index, row in enumerate(coming):
            self._coming[index] = row
        requests = self.requests + sum([row[2] for row in coming])
        if requests > self._capacity:
            self._make_room(requests)
        futures = self._futures_for(samples, 1 if certain else MARKS)
        blocks, places, first_with = self._nothing
        picture = self._picture
        start = Start(
            self._records,
            picture.sequences[:requests],
            picture.running,
            blocks,
            places,
            first_with,
            picture.older,
            picture.newer,
            self._arrivals[: requests - self.requests],
            self._watched,
        )
        futures = futures._replace(totals=self._totals[: samples * requests].reshape(samples, -1))
        forecast(
            picture,
            start,
            self._room,
            model,
            self._coming[: len(coming)],
            now_s,
            every_step_published,
            _SEED,
            futures,
        )
        ttft_s = np.maximum(futures.first_token_s - now_s, 0.0)
        e2e_s = np.maximum(futures.last_token_s.ravel() - now_s, 0.0)
        ttft_s.sort()
        e2e_s.sort()
        return Forecast(
            ttft_s=ttft_s,
            e2e_s=e2e_s,
            output_tokens=float(futures.marks["tokens"].mean()),
            preemptions=float(futures.counts[0]),
            steps=int(futures.counts[1]),
        )

    def _futures_for(self, samples: int, marks: int) -> Futures:
        found = self._futures.get((samples, marks))
        if found is None:
            found = self._futures[samples, marks] = Futures(
                np.empty((0, 0), np.int64),
                np.empty(marks, MARK),
                np.empty(samples),
                np.empty((samples, marks)),
                np.empty(2, np.int64),
            )
        return found

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
        self._arrivals = np.zeros(capacity, np.int32)
        self._totals = np.zeros(_MOST_SAMPLES * capacity, np.int64)
        self._room = Room(
            self._room_records,
            np.empty(capacity, SEQUENCE),
            np.empty(capacity, np.int32),
            np.empty(capacity, ENTRY),
            np.empty(capacity, ENTRY),
            np.empty(capacity, np.int32),
            self._residues,
        )


def _blank_lengths(capacity: int) -> Lengths:
    return Lengths(
        np.zeros((capacity, WIDTH)), np.zeros(capacity, np.int64), np.zeros(capacity, np.int64)
    )
