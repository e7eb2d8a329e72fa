"""What a predictor publishes of its engine, so that schedulers can predict by themselves.

Compiled code does not check what it reads, so whoever receives a snapshot does (`check`): nothing
but what a predictor could have published is let in.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.engine.arrays import engine_record
from foretell.engine.questions import Arrival, Figures
from foretell.kernel.layout import INPUT
from foretell.kernel.lengths import LEVELS
from foretell.kernel.pictures import PICTURE, REQUEST, STEPS
from foretell.kernel.step_time import COEFFICIENTS, TABLES_SCALE, StepTime
from foretell.latency.linear import sums
from foretell.model import BatchShape, EngineConfig

MOST_REQUESTS = 20_000
"""Most rows of one snapshot."""
MOST_INPUTS = 20_000
"""Most multimodal inputs of one snapshot, with what is in the encoder cache."""
_MOST_NUMBER = 1 << 40
_COUNTS = tuple(name for name in REQUEST.names or () if REQUEST[name] == np.int32)
_NUMBERS = ("prompt", "max_tokens", "priority", "cached_tokens", "key", "sequences")
_MOST_NUMBERS = (_MOST_NUMBER, _MOST_NUMBER, inf, *[_MOST_NUMBER] * 3)
_COLUMNS = len(LEVELS)  # of a length row, before its tail


class SnapshotError(ValueError):
    """What was received is no snapshot; the first argument is a word for metrics."""


class Snapshot(NamedTuple):
    """One engine as its predictor knows it. Instants are of the predictor's clock."""

    instance_id: str
    config: EngineConfig
    taken_s: float
    """When the engine was in the state that it shows."""
    header: bytes
    """One row of `kernel.pictures.PICTURE`."""
    requests: bytes
    """Rows of `kernel.pictures.REQUEST`."""
    inputs: bytes
    """Rows of `kernel.layout.INPUT`, as `kernel.pictures.Pictures` has them."""
    reservations: Sequence[Arrival]
    """The requests on their way, in the order in which they were dispatched."""
    expected: Sequence[Arrival]
    """At most one row: who will come though nobody has announced it."""
    dispatch_delay_s: float
    step_time: StepTime
    step_error: tuple[float, float]
    """`latency.residuals.Residuals.variances`."""
    calibration_steps: int


class Published(NamedTuple):
    """One message of a predictor to a follower. Instants are of the predictor's clock."""

    sent_s: float
    heard_s: float
    """When the engine was last heard from."""
    snapshot: Snapshot | None = None
    """None: as before."""
    all_prefixes: bool = False
    """`cached_prefixes` are all that there are."""
    cached_prefixes: tuple[int, ...] = ()
    evicted_prefixes: tuple[int, ...] = ()
    notices: int = 0
    """Those of the follower that are reckoned with in the snapshot."""
    silent_s: float = 0.0
    """For so long before `sent_s` the engine may have made steps that it has not told yet."""


def header_of(
    config: EngineConfig,
    figures: Figures,
    shapes: Sequence[BatchShape],
    begun_s: float,
    *,
    contents: int,
    inputs: int,
    online: tuple[float, float],
    draft_ratios: tuple[Sequence[float], Sequence[float]],
    deferral: tuple[int, bool] = (0, False),
) -> bytes:
    """The header of a snapshot; SnapshotError where it cannot be true.

    `shapes` are those of the steps in flight, the oldest first, which began at `begun_s`. `inputs`
    are rows behind `contents`. `online` are the TTFT and the blocks that are expected of online
    requests, `draft_ratios` those of drafted and of accepted tokens, `deferral`
    `EngineSnapshot`'s step counter and whether prompts are not put off.
    """
    packed = list(map(sums, shapes))
    _check(0 <= figures.running <= figures.requests <= MOST_REQUESTS, "count")
    _check(0 <= figures.free_blocks <= config.total_blocks, "blocks")
    _check(0 <= figures.waiting_blocks < _MOST_NUMBER, "blocks")
    _check(len(packed) <= STEPS, "steps")
    _check(all(0 <= n < _MOST_NUMBER for shape in packed for n in shape), "steps")
    _check(online[0] >= 0 and 0 <= online[1] < inf, "online")
    header = np.zeros(1, PICTURE)
    header["engine"], header["figures"] = engine_record(config), figures
    header["steps"] = len(packed)
    if packed:
        header["shapes"][0, : len(packed)] = packed
    header["begun_s"], header["contents"], header["inputs"] = begun_s, contents, inputs
    engine = header["engine"]
    engine["online_ttft_s"], engine["usual_online_blocks"] = online
    engine["step_counter"], engine["prefill_capacity_bound"] = deferral
    for name, ratios in zip(("drafted_ratio", "accepted_ratio"), draft_ratios, strict=True):
        if ratios:
            engine[name][0, : len(ratios)] = ratios
    return header.tobytes()


def check(snapshot: Snapshot) -> None:
    """SnapshotError where the rows of a snapshot, whose header is true, cannot be."""
    _check(all(0 <= part < _MOST_NUMBER for part in snapshot.step_error), "step_time")
    (header,) = np.frombuffer(snapshot.header, PICTURE)
    requests = np.frombuffer(snapshot.requests, REQUEST)
    inputs = np.frombuffer(snapshot.inputs, INPUT)
    _check_requests(requests, snapshot.config)
    _check_inputs(inputs, int(header["contents"]), requests, snapshot.config)


def are_certain(requests: NDArray[np.void]) -> bool:
    """Whether the lengths of all rows of `REQUEST` are taken at their word."""
    lengths = requests["length"]
    return bool(((lengths[:, 0] == lengths[:, -2]) & (lengths[:, -1] == 0)).all())


def _check_requests(rows: NDArray[np.void], config: EngineConfig) -> None:
    if not len(rows):
        return
    _check_lengths(rows)
    _check_targets(rows)
    _check(bool(np.isfinite(rows["arrival_s"]).all()), "time")
    _check_ranges(_side_by_side(rows, np.int32, _COUNTS), _COUNTS, _most_of(config))
    _check(bool((rows["left"] <= rows["blocks"]).all()), "left")


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


def _check_inputs(
    rows: NDArray[np.void], contents: int, requests: NDArray[np.void], config: EngineConfig
) -> None:
    """`requests` are the checked rows of the requests that have these inputs."""
    _check(int(requests["inputs"].sum()) == len(rows) - contents, "inputs")
    if not len(rows):
        return
    _check(len(rows) <= MOST_INPUTS, "inputs")
    own, cached = rows[contents:], rows["cached"][:contents]
    names = ("content", "offset", "length", "first_embed", "end_embed", "held")
    length = config.max_model_len
    most = (contents - 1, length, length, length, length, 1)
    if len(own):
        _check_ranges(_side_by_side(own, np.int32, names), names, most)
        _check(bool(cached[own["content"][own["held"] > 0]].all()), "inputs")
    _check(bool((cached >> 1 == 0).all()) and int(rows["embeds"].min()) >= 0, "inputs")
    room = config.encoder_cache_size
    _check(int((rows["embeds"][:contents] * cached).sum(dtype=np.int64)) <= room, "inputs")


def arrivals_of(rows: NDArray[np.void], latest_s: float = inf) -> list[Arrival]:
    """Rows of `kernel.pictures.ARRIVAL` as requests on their way; SnapshotError where they cannot
    be true.

    What was sent after `latest_s` was sent before the predictor's clock was set back.
    """
    if not len(rows):
        return []
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
        Arrival(tuple(length.tolist()), min(at_s, latest_s), *rest)
        for length, at_s, *rest in rows.tolist()
    ]


def step_time_of(step_time: Sequence[float], tables: StepTime) -> StepTime:
    """The model of those `StepTime.coefficients` with those `tables`; SnapshotError where it cannot
    be one.

    Coefficients are only ever appended: those that an older writer lacks are 0, those of a newer
    one are left out.
    """
    coefficients = np.zeros(COEFFICIENTS)
    known = step_time[:COEFFICIENTS]
    coefficients[: len(known)] = known
    _check(len(known) > 0 and bool(np.isfinite(coefficients).all()), "step_time")
    _check(not coefficients[TABLES_SCALE] or len(tables.values) > 0, "step_time")
    return tables._replace(coefficients=coefficients)


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
        raise SnapshotError(what)
