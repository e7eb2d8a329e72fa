"""What a predictor publishes of its engine, so that schedulers can predict by themselves.

Compiled code does not check what it reads, so the receiver must `check` every snapshot: it rejects
what no predictor could have published.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from math import inf, isfinite
from struct import Struct, pack_into
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.engine.arrays import engine_record
from foretell.engine.questions import ExpectedArrival, Figures, unpacked
from foretell.kernel.compiled import untrue_arrivals, untrue_requests
from foretell.kernel.layout import ENGINE, INPUT
from foretell.kernel.snapshot_rows import REQUEST, SHAPE, SNAPSHOT, STEPS
from foretell.kernel.step_time import COEFFICIENTS, TABLES_SCALE, StepTime
from foretell.model import OFFLINE_PRIORITY, EngineConfig

MOST_REQUESTS = 20_000
"""Most rows of one snapshot."""
MOST_INPUTS = 20_000
"""Most multimodal inputs of one snapshot, with what is in the encoder cache."""
_MOST_NUMBER = 1 << 40
_COUNTS = tuple(name for name in REQUEST.names or () if REQUEST[name] == np.int32)
# The greatest numbers of an arrival, from its prompt on. A prompt may exceed the context length:
# the engine will refuse it.
_MOST_NUMBERS = np.array((_MOST_NUMBER, _MOST_NUMBER, inf, *[_MOST_NUMBER] * 3))
_STATE = Struct(f"{7 + STEPS * SHAPE}q2d2q")
"""The fields of a header behind its engine record, from `version` on."""
_STATE_AT = ENGINE.itemsize
_AT = {name: field[1] for name, field in (ENGINE.fields or {}).items()}


class SnapshotError(ValueError):
    """The received snapshot is invalid. The first argument is a label value for metrics."""


class Snapshot(NamedTuple):
    """One engine as its predictor knows it. Instants are of the predictor's clock."""

    instance_id: str
    config: EngineConfig
    taken_s: float
    """When the engine was in this state."""
    header: bytes
    """One row of `kernel.snapshot_rows.SNAPSHOT`."""
    requests: bytes
    """Rows of `kernel.snapshot_rows.REQUEST`."""
    inputs: bytes
    """Rows of `kernel.layout.INPUT`, in the order of `kernel.snapshot_rows.Snapshots.inputs`."""
    reservations: Sequence[ExpectedArrival]
    """The requests on their way, in the order in which they were dispatched."""
    expected: Sequence[ExpectedArrival]
    """At most one row: the requests that will probably arrive without having been announced."""
    dispatch_delay_s: float
    step_time: StepTime
    step_error: tuple[float, float]
    """`latency.residuals.StepResiduals.variances`."""
    calibration_steps: int


class Published(NamedTuple):
    """One message of a predictor to a follower. Instants are of the predictor's clock."""

    sent_s: float
    heard_s: float
    """When the engine was last heard from."""
    snapshot: Snapshot | None = None
    """None: unchanged."""
    all_prefixes: bool = False
    """Whether `cached_prefixes` are all cached prefixes, not only the new ones."""
    cached_prefixes: tuple[int, ...] = ()
    evicted_prefixes: tuple[int, ...] = ()
    notices: int = 0
    """The number of the follower's notices that the snapshot takes into account."""
    silent_s: float = 0.0
    """For so long before `sent_s` the engine may have made steps that it has not reported yet."""


def header_of(
    config: EngineConfig,
    figures: Figures,
    shapes: Sequence[Sequence[int]],
    begun_s: float,
    *,
    contents: int,
    inputs: int,
    online: tuple[float, float],
    draft_ratios: tuple[Sequence[float], Sequence[float]],
    deferral: tuple[int, bool] = (0, False),
) -> bytes:
    """Return the header of a snapshot; the arguments are not checked.

    `shapes` are those of the steps in flight, oldest first; the oldest began at `begun_s`. `inputs`
    counts the rows of inputs behind the `contents`. `online` is the TTFT and the blocks that are
    expected of online requests, `draft_ratios` the ratios of drafted and of accepted tokens,
    `deferral` the `step_counter` and `prefill_capacity_bound` of `EngineSnapshot`.
    """
    header = bytearray(_idle_header(config))
    sums = [*chain.from_iterable(shapes)]
    sums += (STEPS * SHAPE - len(sums)) * [0]
    state = (0, *figures, len(shapes), *sums, begun_s, 0.0, contents, inputs)
    _STATE.pack_into(header, _STATE_AT, *state)
    pack_into("2d", header, _AT["online_ttft_s"], *online)
    pack_into("2q", header, _AT["step_counter"], *deferral)
    for name, ratios in zip(("drafted_ratio", "accepted_ratio"), draft_ratios, strict=True):
        pack_into(f"{len(ratios)}d", header, _AT[name], *ratios)
    return bytes(header)


@lru_cache(maxsize=16)
def _idle_header(config: EngineConfig) -> bytes:
    header = np.zeros(1, SNAPSHOT)
    header["engine"] = engine_record(config)
    return header.tobytes()


def figures_of(header: bytes) -> Figures:
    """The load that a snapshot of this header shows."""
    return Figures(*_STATE.unpack_from(header, _STATE_AT)[1:6])


def offline_blocks(rows: NDArray[np.void]) -> int:
    """KV blocks of the offline requests among these rows; shared blocks count for each request."""
    return int(rows["blocks"][rows["priority"] == OFFLINE_PRIORITY].sum())


def check_state(
    config: EngineConfig,
    figures: Figures,
    shapes: Sequence[Sequence[int]],
    online: tuple[float, float],
) -> None:
    """SnapshotError if these arguments of `header_of` are of no possible state."""
    _check(0 <= figures.running <= figures.requests <= MOST_REQUESTS, "count")
    _check(0 <= figures.free_blocks <= config.total_blocks, "blocks")
    _check(0 <= figures.waiting_blocks < _MOST_NUMBER, "blocks")
    _check(len(shapes) <= STEPS, "steps")
    sums = [*chain.from_iterable(shapes)]
    _check(not sums or (min(sums) >= 0 and max(sums) < _MOST_NUMBER), "steps")
    _check(online[0] >= 0 and 0 <= online[1] < inf, "online")


def check(snapshot: Snapshot) -> None:
    """SnapshotError if the rows of a snapshot are of no possible state; its header is trusted."""
    _check(all(0 <= part < _MOST_NUMBER for part in snapshot.step_error), "step_time")
    *_, contents, inputs = _STATE.unpack_from(snapshot.header, _STATE_AT)
    why = untrue_requests(snapshot.requests, _most_of(snapshot.config), inputs)
    _check(not why, why)
    _check(len(snapshot.inputs) == (contents + inputs) * INPUT.itemsize, "inputs")
    if snapshot.inputs:
        _check_inputs(np.frombuffer(snapshot.inputs, INPUT), contents, snapshot.config)


@lru_cache(maxsize=16)
def _most_of(config: EngineConfig) -> NDArray[np.float64]:
    """The greatest value of each of `_COUNTS`; infinite: any value, also a negative one."""
    length = config.max_model_len
    most: dict[str, float] = {
        **dict.fromkeys(("prompt", "output", "cached_tokens"), length),
        **dict.fromkeys(("computed", "scheduled", "in_flight", "older"), 2 * length),
        **dict.fromkeys(("blocks", "left"), -(-2 * length // config.block_size_tokens)),
        **dict.fromkeys(("max_tokens", "preemptions", "adapter"), _MOST_NUMBER),
        "inputs": MOST_INPUTS,
        "priority": inf,
    }
    return np.array([most[name] for name in _COUNTS])


def _check_inputs(rows: NDArray[np.void], contents: int, config: EngineConfig) -> None:
    _check(len(rows) <= MOST_INPUTS, "inputs")
    own, cached = rows[contents:], rows["cached"][:contents]
    length = config.max_model_len
    most = {"content": contents - 1, "held": 1}
    if len(own):
        for name in ("content", "offset", "length", "first_embed", "end_embed", "held"):
            _check(own[name].min() >= 0 and own[name].max() <= most.get(name, length), name)
        _check(bool(cached[own["content"][own["held"] > 0]].all()), "inputs")
    _check(bool((cached >> 1 == 0).all()) and int(rows["embeds"].min()) >= 0, "inputs")
    room = config.encoder_cache_size
    _check(int((rows["embeds"][:contents] * cached).sum(dtype=np.int64)) <= room, "inputs")


def arrivals_of(rows: bytes | bytearray, latest_s: float = inf) -> list[ExpectedArrival]:
    """Unpack rows of `kernel.snapshot_rows.ARRIVAL`; SnapshotError if they are impossible.

    Times after `latest_s` are set to it: they are of before the predictor's clock was set back.
    """
    if not rows:
        return []
    why = untrue_arrivals(rows, _MOST_NUMBERS, MOST_REQUESTS)
    _check(not why, why)
    found = unpacked(rows)
    if latest_s < inf:
        found = [row._replace(at_s=latest_s) if row.at_s > latest_s else row for row in found]
    return found


def step_time_of(step_time: Sequence[float], tables: StepTime) -> StepTime:
    """The model with these `StepTime.coefficients` and `tables`; SnapshotError if it is invalid.

    New versions only append coefficients: those that an older writer lacks are 0, and unknown ones
    of a newer writer are left out.
    """
    known = step_time[:COEFFICIENTS]
    _check(len(known) > 0 and all(map(isfinite, known)), "step_time")
    coefficients = np.array([*known, *[0.0] * (COEFFICIENTS - len(known))])
    _check(not coefficients[TABLES_SCALE] or len(tables.values) > 0, "step_time")
    return tables._replace(coefficients=coefficients)


def _check(true: bool, what: str) -> None:
    if not true:
        raise SnapshotError(what)
