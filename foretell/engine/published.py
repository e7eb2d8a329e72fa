"""What a predictor publishes of its engine, so that schedulers can predict by themselves.

Rows travel as the bytes of the kernel's own arrays. Compiled code does not check what it reads, so
whoever receives them does: nothing but what a predictor could have published is let in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from math import inf
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from foretell.engine.forecast import Forecaster
from foretell.engine.questions import Arrival, Figures
from foretell.kernel.layout import INPUT
from foretell.kernel.lengths import LEVELS
from foretell.kernel.pictures import ARRIVAL, REQUEST, STEPS
from foretell.kernel.step_time import COEFFICIENTS, TABLES_SCALE, StepTime
from foretell.latency.linear import sums
from foretell.model import BatchShape, EngineConfig

LAYOUT = crc32(repr((REQUEST, ARRIVAL, INPUT, LEVELS, COEFFICIENTS)).encode())
"""Fingerprint of the rows: those of another release may mean something else."""
MOST_REQUESTS = 20_000
"""Most rows of one picture."""
MOST_INPUTS = 20_000
"""Most multimodal inputs of one picture, with what is in the encoder cache."""
_MOST_NUMBER = 1 << 40
_COUNTS = tuple(name for name in REQUEST.names or () if REQUEST[name] == np.int32)
_NUMBERS = ("prompt", "max_tokens", "priority", "cached_tokens", "key", "sequences")
_MOST_NUMBERS = (_MOST_NUMBER, _MOST_NUMBER, inf, *[_MOST_NUMBER] * 3)
_COLUMNS = len(LEVELS)  # of a length row, before its tail


class PictureError(ValueError):
    """What was received is no picture; the first argument is a word for metrics."""


@dataclass(frozen=True, slots=True)
class PublishedPicture:
    """One engine as its predictor knows it. Instants are of the predictor's clock."""

    instance_id: str
    config: EngineConfig
    taken_s: float
    """When the snapshot was taken that it shows."""
    running: int
    """The first of `requests`."""
    free_blocks: int
    waiting_blocks: int
    shapes: tuple[BatchShape, ...]
    """Those of the steps in flight, the oldest first."""
    step_began_s: float
    """The oldest step in flight."""
    online_ttft_s: float
    """This and the next three as in `EngineSnapshot`."""
    usual_online_blocks: float
    drafted_ratio: tuple[float, ...]
    accepted_ratio: tuple[float, ...]
    requests: bytes
    """Rows of `kernel.pictures.REQUEST`."""
    reservations: bytes
    """Rows of `kernel.pictures.ARRIVAL`, in the order in which they were made."""
    expected: bytes
    """At most one such row."""
    dispatch_delay_s: float
    step_time: tuple[float, ...]
    """`StepTime.coefficients`."""
    step_error: tuple[float, float]
    """`latency.residuals.Residuals.variances`."""
    calibration_steps: int
    step_tables: StepTime | None = None
    """The model's tables; None: as before."""
    notices: int = 0
    """Those of the follower that are reckoned with here."""
    inputs: bytes = b""
    """Rows of `kernel.layout.INPUT`, as `kernel.pictures.Pictures` has them."""
    contents: int = 0
    """The first of them."""

    @property
    def checksum(self) -> int:
        """CRC-32 of all rows."""
        parts = self.requests, self.reservations, self.expected, self.inputs
        return reduce(lambda known, part: crc32(part, known), parts, 0)


@dataclass(frozen=True, slots=True)
class Published:
    """One message of a predictor to a follower. Instants are of the predictor's clock."""

    sent_s: float
    heard_s: float
    """When the engine was last heard from."""
    picture: PublishedPicture | None = None
    """None: as before."""
    all_prefixes: bool = False
    """`cached_prefixes` are all that there are."""
    cached_prefixes: tuple[int, ...] = ()
    evicted_prefixes: tuple[int, ...] = ()
    silent_s: float = 0.0
    """For so long before `sent_s` the engine may have made steps that it has not told yet."""


def show(
    forecaster: Forecaster,
    index: int,
    picture: PublishedPicture,
    rows: NDArray[np.void],
    inputs: NDArray[np.void],
    shift_s: float,
    sent_s: float,
) -> None:
    """Make `picture`, with its checked `rows` and `inputs`, that of engine `index`.

    Instants are `shift_s` later. Its predictor knew of nothing else when it sent it, at `sent_s`.
    """
    count = len(rows)
    forecaster.make_room(count)
    forecaster.expect_online(index, picture.online_ttft_s, picture.usual_online_blocks)
    forecaster.expect_drafts(index, picture.drafted_ratio, picture.accepted_ratio)
    forecaster.show_inputs(index, inputs, picture.contents)
    own = forecaster.pictures.requests[index, :count]
    own[:] = rows
    own["arrival_s"] += shift_s
    lengths = rows["length"]
    certain = (lengths[:, 0] == lengths[:, -2]) & (lengths[:, -1] == 0)
    figures = Figures(
        count,
        picture.running,
        picture.free_blocks,
        picture.waiting_blocks,
        int(certain.all()),
    )
    forecaster.finish_picture(
        index,
        figures,
        list(map(sums, picture.shapes)),
        sent_s + shift_s,
        min(picture.step_began_s, sent_s) + shift_s,
    )


def packed_requests(forecaster: Forecaster, index: int) -> bytes:
    """The rows of engine `index` as bytes."""
    count = forecaster.figures(index).requests
    return forecaster.pictures.requests[index, :count].tobytes()


def packed_inputs(forecaster: Forecaster, index: int) -> tuple[bytes, int]:
    """The multimodal inputs of engine `index` as bytes, and how many of the rows are contents."""
    header = forecaster.pictures.headers[index : index + 1]
    contents, inputs = int(header["contents"][0]), int(header["inputs"][0])
    return forecaster.pictures.inputs[index, : contents + inputs].tobytes(), contents


def packed_arrivals(rows: Sequence[Arrival]) -> bytes:
    """Requests on their way as bytes."""
    return np.array(rows, ARRIVAL).tobytes() if rows else b""


def requests_of(picture: PublishedPicture) -> NDArray[np.void]:
    """The rows of `picture.requests`, read-only; PictureError where they cannot be true."""
    rows = _rows(picture.requests, REQUEST)
    config, count = picture.config, len(rows)
    _check(count <= MOST_REQUESTS and picture.running <= count, "count")
    _check(0 <= picture.free_blocks <= config.total_blocks, "blocks")
    _check(0 <= picture.waiting_blocks < _MOST_NUMBER, "blocks")
    _check(len(picture.shapes) <= STEPS, "steps")
    _check(all(0 <= part < _MOST_NUMBER for part in picture.step_error), "step_time")
    _check(all(0 <= n < _MOST_NUMBER for shape in picture.shapes for n in sums(shape)), "steps")
    _check(picture.online_ttft_s >= 0 and 0 <= picture.usual_online_blocks < inf, "online")
    if count:
        _check_lengths(rows)
        _check_targets(rows)
        _check(bool(np.isfinite(rows["arrival_s"]).all()), "time")
        _check_ranges(_side_by_side(rows, np.int32, _COUNTS), _COUNTS, _most_of(config))
        _check(bool((rows["left"] <= rows["blocks"]).all()), "left")
    return rows


@lru_cache(maxsize=16)
def _most_of(config: EngineConfig) -> tuple[float, ...]:
    """The greatest of each of `_COUNTS`; infinite: anything goes, also below 0."""
    length = config.max_model_len
    most: dict[str, float] = {
        **dict.fromkeys(("prompt", "output", "cached_tokens"), length),
        **dict.fromkeys(("computed", "scheduled", "in_flight", "older"), 2 * length),
        **dict.fromkeys(("blocks", "left"), -(-2 * length // config.block_size_tokens)),
        **dict.fromkeys(("max_tokens", "preemptions", "adapter"), _MOST_NUMBER),
        "inputs": MOST_INPUTS,
        "priority": inf,
    }
    return tuple(most[name] for name in _COUNTS)


def inputs_of(picture: PublishedPicture, requests: NDArray[np.void]) -> NDArray[np.void]:
    """The rows of `picture.inputs`, read-only; PictureError where they cannot be true.

    `requests` are the checked rows of its requests.
    """
    rows, contents = _rows(picture.inputs, INPUT), picture.contents
    _check(int(requests["inputs"].sum()) == len(rows) - contents, "inputs")
    if not len(rows):
        return rows
    _check(len(rows) <= MOST_INPUTS, "inputs")
    own, cached = rows[contents:], rows["cached"][:contents]
    names = ("content", "offset", "length", "first_embed", "end_embed", "held")
    length = picture.config.max_model_len
    most = (contents - 1, length, length, length, length, 1)
    if len(own):
        _check_ranges(_side_by_side(own, np.int32, names), names, most)
        _check(bool(cached[own["content"][own["held"] > 0]].all()), "inputs")
    _check(bool((cached >> 1 == 0).all()) and int(rows["embeds"].min()) >= 0, "inputs")
    room = picture.config.encoder_cache_size
    _check(int((rows["embeds"][:contents] * cached).sum(dtype=np.int64)) <= room, "inputs")
    return rows


def arrivals_of(
    packed: bytes, max_model_len: int, shift_s: float, latest_s: float = inf
) -> list[Arrival]:
    """Requests on their way, `shift_s` later; PictureError where they cannot be true.

    What was sent after `latest_s` was sent before the predictor's clock was set back.
    """
    if not packed:
        return []
    rows = _rows(packed, ARRIVAL)
    _check(len(rows) <= MOST_REQUESTS, "count")
    _check_lengths(rows)
    _check_targets(rows)
    at, every = _side_by_side(rows, np.float64, ("at_s", "every_s")).T
    _check(bool(np.isfinite(at).all()), "time")
    _check(bool(every.min() >= 0) and bool(every.max() <= _MOST_NUMBER), "time")
    # A client may send a prompt that is longer than the context: its engine will refuse it.
    _check_ranges(_side_by_side(rows, np.int64, _NUMBERS), _NUMBERS, _MOST_NUMBERS)
    _check(int(rows["sequences"].min()) >= 1, "sequences")
    _check(int(rows["sequences"].sum()) <= MOST_REQUESTS, "sequences")
    return [
        Arrival(tuple(length.tolist()), min(at_s, latest_s) + shift_s, *rest)
        for length, at_s, *rest in rows.tolist()
    ]


def step_time_of(step_time: Sequence[float], tables: StepTime) -> StepTime:
    """The model of those `StepTime.coefficients` with those `tables`; PictureError where it cannot
    be one."""
    coefficients = np.array(step_time)
    _check(coefficients.shape == (COEFFICIENTS,), "step_time")
    _check(bool(np.isfinite(coefficients).all()), "step_time")
    _check(not coefficients[TABLES_SCALE] or len(tables.values) > 0, "step_time")
    return tables._replace(coefficients=coefficients)


def _rows(packed: bytes, kind: np.dtype[np.void]) -> NDArray[np.void]:
    _check(len(packed) % kind.itemsize == 0, "size")
    return np.frombuffer(packed, kind)


def _check_lengths(rows: NDArray[np.void]) -> None:
    """Believed lengths: tokens that ascend, and a tail."""
    lengths = rows["length"]
    _check(bool(np.isfinite(lengths).all()) and bool(lengths.min() >= 0), "length")
    _check(bool((lengths[:, 1:_COLUMNS] >= lengths[:, : _COLUMNS - 1]).all()), "length")


def _check_targets(rows: NDArray[np.void]) -> None:
    targets = _side_by_side(rows, np.float64, ("ttft_target_s", "tpot_target_s"))
    _check(bool(targets.min() >= 0) and bool(targets.max() < inf), "targets")


def _side_by_side(
    rows: NDArray[np.void], kind: type[np.number[Any]], names: Sequence[str]
) -> NDArray[Any]:
    """The columns `names`, neighbours of one kind, as one array: looking at each costs more."""
    at, size = rows.dtype.fields[names[0]][1], np.dtype(kind).itemsize  # type: ignore[index]
    table = rows.view(kind).reshape(len(rows), -1)
    return table[:, at // size : at // size + len(names)]


def _check_ranges(table: NDArray[Any], names: Sequence[str], most: Sequence[float]) -> None:
    """All integers of each column are in [0, most], unless that is infinite."""
    bounds = zip(names, table.min(axis=0).tolist(), table.max(axis=0).tolist(), most, strict=True)
    for name, low, high, highest in bounds:
        _check((low >= 0 and high <= highest) or highest == inf, name)


def _check(true: bool, what: str) -> None:
    if not true:
        raise PictureError(what)
