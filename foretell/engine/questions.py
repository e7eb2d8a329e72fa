"""Questions to forecasts, and their answers."""

from collections.abc import Sequence as Seq
from math import inf
from struct import Struct
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.forecasts import QUESTION, Answers
from foretell.kernel.lengths import WIDTH
from foretell.kernel.snapshot_rows import ARRIVAL
from foretell.length.distribution import Row
from foretell.model import RequestSpec

Values = NDArray[np.float64]
_ROW, _QUESTION = Struct(f"{WIDTH + 4}d6q"), Struct("7qd")
assert (_ROW.size, _QUESTION.size) == (ARRIVAL.itemsize, QUESTION.itemsize)


class ExpectedArrival(NamedTuple):
    """A request on its way to an engine: the fields of `kernel.snapshot_rows.ARRIVAL`."""

    length: Row
    at_s: float
    every_s: float
    ttft_target_s: float
    tpot_target_s: float
    prompt: int
    max_tokens: int
    priority: int
    cached_tokens: int
    key: int
    sequences: int


class EngineQuestion(NamedTuple):
    """One engine that a new request asks about: the fields of `kernel.forecasts.QUESTION`."""

    engine: int
    """Its place among the engines of the forecaster."""
    samples: int
    cached_tokens: int
    announced: Seq[ExpectedArrival]
    """The requests on their way to the engine."""
    expected: Seq[ExpectedArrival] = ()
    """The requests that will probably arrive without having been announced."""
    version: int = 0
    """Changes whenever the snapshot, `announced` or the step-time model does."""
    delay_s: float = 0.0
    """Seconds from `at_s` of announced arrivals and of the new request to the engine's queue."""


class Figures(NamedTuple):
    """An engine's load as its snapshot shows it."""

    requests: int
    running: int
    free_blocks: int
    waiting_blocks: int
    """KV blocks that the waiting requests need to be admitted."""
    certain: int
    """1 if the lengths of all requests are certain, otherwise 0."""


class Forecast(NamedTuple):
    """Seconds from the moment of prediction; infinite when the request could never run."""

    ttft_s: float
    """The mean of `ttfts_s`."""
    e2e_s: float
    """The mean of `e2es_s`."""
    output_tokens: float
    """The mean that `e2e_s` was predicted with."""
    preempted_s: float
    """The part of `e2e_s` in which it is preempted after its first token, or recomputed."""
    steps: int
    """Steps of the engine until the new request has ended with its longest length."""
    added: Seq[float] | None
    """Seconds that the new request adds to the first and to the last tokens of all others
    (`kernel.forecasts.cost`); None if not asked for."""
    answers: Answers
    """Of the latest call: the next call overwrites them."""
    now_s: float
    row: int
    """The row of this forecast in `answers`."""
    samples: int

    @property
    def ttfts_s(self) -> Values:
        """(samples,): equally likely values, in no order."""
        return self._seconds(self.answers.first_token_s)

    @property
    def e2es_s(self) -> Values:
        """(samples, marks): equally likely values, in no order."""
        return self._seconds(self.answers.last_token_s)

    def _seconds(self, instants: Values) -> Values:
        return np.maximum(instants[self.row, : self.samples] - self.now_s, 0.0)


def arrival(
    request: RequestSpec,
    length_row: Row,
    at_s: float,
    every_s: float = 0.0,
    cached_tokens: int | None = None,
) -> ExpectedArrival:
    """The row of a request whose sequences join the queue from `at_s` on, `every_s` apart.

    `cached_tokens` of its prompt are expected to be cached; None: as many as the request states.
    """
    return ExpectedArrival(
        length_row,
        at_s,
        every_s,
        request.ttft_target_s,
        request.tpot_target_s,
        request.prompt_tokens,
        request.max_tokens,
        request.priority,
        request.cached_tokens if cached_tokens is None else cached_tokens,
        key_of(request.request_id),
        request.sequences,
    )


def packed(rows: Seq[ExpectedArrival]) -> bytes:
    """Pack rows of `kernel.snapshot_rows.ARRIVAL`; numpy would take several times as long."""
    return b"".join([_ROW.pack(*row[0], *row[1:]) for row in rows])


def unpacked(rows: bytes | bytearray) -> list[ExpectedArrival]:
    """The inverse of `packed`."""
    return [ExpectedArrival(values[:WIDTH], *values[WIDTH:]) for values in _ROW.iter_unpack(rows)]


def rows_of(
    questions: Seq[EngineQuestion], new_request: ExpectedArrival
) -> tuple[bytes, bytes, int]:
    """Pack rows of `kernel.forecasts.QUESTION` and `ARRIVAL`, and count the latter's sequences."""
    rows: list[bytes] = []
    arrivals: list[ExpectedArrival] = []
    first = 0
    for engine, samples, cached, announced, expected, version, delay_s in questions:
        arrivals += announced
        behind = end = len(arrivals)
        if expected:
            arrivals += expected
            end = len(arrivals)
        rows.append(_QUESTION.pack(engine, samples, cached, first, behind, end, version, delay_s))
        first = end
    arrivals.append(new_request)
    return b"".join(rows), packed(arrivals), sum([row.sequences for row in arrivals])


def shifted(rows: Seq[ExpectedArrival], shift_s: float) -> Seq[ExpectedArrival]:
    """The rows, so many seconds later."""
    return [row._replace(at_s=row.at_s + shift_s) for row in rows] if shift_s else rows


def key_of(request_id: str) -> int:
    """The number that stands for a request in snapshots and draws of lengths."""
    return crc32(request_id.encode())


def is_certain(row: Row) -> bool:
    """Whether a length is certain: all knots are equal and there is no tail."""
    return row[0] == row[-2] and not row[-1]


def quantile(values: Seq[float], level: float) -> float:
    """The quantile of equally likely, ascending values: linear between the middles of their shares.

    Infinite between an infinite value and the one before it.
    """
    last = len(values) - 1
    place = min(max(level * len(values) - 0.5, 0.0), float(last))
    before = int(place)
    low, part = values[before], place - before
    if part == 0.0 or low == inf:
        return low
    return low + part * (values[before + 1] - low)


def forecasts(
    questions: Seq[EngineQuestion], answers: Answers, added: Seq[Seq[float] | None], now_s: float
) -> list[Forecast]:
    """One forecast for each question, in seconds from now."""
    rows = zip(questions, answers.means.tolist(), answers.counts.tolist(), added, strict=True)
    found = []
    for row, (question, (ttft_s, e2e_s, tokens, preempted_s), (steps,), cost) in enumerate(rows):
        rest = cost, answers, now_s, row, question.samples
        found.append(Forecast(ttft_s, e2e_s, tokens, preempted_s, steps, *rest))
    return found
