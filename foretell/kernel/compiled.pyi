"""The types of the extension module that `src/module.cpp` defines. The functions are documented at
their definitions in `src/`.

Arrays must be contiguous and have the named dtypes. Arguments are positional. TypeError for arrays
whose items have another size.
"""

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.forecasts import Answers, Costs, Scratch
from foretell.kernel.layout import Record, State
from foretell.kernel.live import Engines, Live
from foretell.kernel.snapshot_rows import Snapshots
from foretell.kernel.step_time import StepTime, StepTimes, Sums

_Floats = NDArray[np.float64]
_Short = NDArray[np.float32]
_Ints = NDArray[np.int64]
_Rows = NDArray[np.void]

LAYOUTS: dict[str, tuple[int, list[tuple[str, int, str, tuple[int, ...]]]]]
"""For each kind of row its size, and the name, offset, kind and dimensions of each field. A field's
kind is a type of numpy or another kind of row."""
STRETCH: float

class ImpossibleState(Exception):
    """A state from outside is impossible for an engine; the message names the broken invariant."""

# live.h, output.h, queues.h, start.h
def advance(
    live: Live,
    model: StepTime,
    now_s: float,
    lands: bool,
    steps: int,
    max_num_scheduled_tokens: int,
    max_num_seqs: int,
    outcome: _Ints,
    /,
) -> int: ...
def run_steps(
    live: Live,
    model: StepTime,
    steps: int,
    max_num_scheduled_tokens: int,
    max_num_seqs: int,
    outcome: _Ints,
    shapes: _Ints,
    /,
) -> int: ...
def count_free(live: Live, now_s: float, /) -> None: ...
def enqueue(state: State, slot: int, /) -> None: ...
def abort_sequence(state: State, slot: int, /) -> None: ...
def check(state: State, /) -> str | None: ...
def limited(state: State, slot: int, total: int, /) -> int: ...
def drafted_tokens(engine: Record, seq: Record, /) -> int: ...
def accepted_tokens(engine: Record, seq: Record, drafts: int, /) -> int: ...

# engines.h
def step(engines: Engines, index: int, now_s: float, /) -> None: ...
def run(engines: Engines, until_s: float, each: bool, /) -> bool: ...
def publish_all(
    engines: Engines, snapshots: Snapshots, indices: _Ints, now_s: float, /
) -> None: ...

# received.h
def fill_column(
    rows: bytearray, own_kind: int, at: int, width: int, stride: int, kind: int, values: bytes, /
) -> str: ...
def untrue_requests(rows: bytes | bytearray, most: _Floats, inputs: int, /) -> str: ...
def untrue_arrivals(rows: bytes | bytearray, most: _Floats, sequences: int, /) -> str: ...
def are_certain(rows: bytes | bytearray, /) -> bool: ...

# forecasts.h
def forecast(
    snapshots: Snapshots,
    scratch: Scratch,
    models: StepTimes,
    questions: bytes,
    arrivals: bytes,
    now_s: float,
    seed: int,
    answers: Answers,
    /,
) -> None: ...
def cost(
    snapshots: Snapshots,
    scratch: Scratch,
    models: StepTimes,
    questions: bytes,
    arrivals: bytes,
    now_s: float,
    seed: int,
    costs: Costs,
    /,
) -> None: ...
def follow_others(
    snapshots: Snapshots,
    scratch: Scratch,
    models: StepTimes,
    questions: bytes,
    arrivals: bytes,
    now_s: float,
    seed: int,
    costs: Costs,
    /,
) -> int: ...
def restore(snapshots: Snapshots, index: int, scratch: Scratch, /) -> None: ...

# step_time.h, tables.h
def step_s(
    model: StepTime,
    prefill_seqs: int,
    prefill_tokens: int,
    prefill_pairs: int,
    decode_seqs: int,
    decode_pairs: int,
    draft_tokens: int,
    /,
) -> float: ...
def shape_s(model: StepTime, sums: Sums, /) -> float: ...
def own_s(model: StepTime, sums: Sums, /) -> float: ...
def ranks_s(model: StepTime, tokens: float, /) -> float: ...
def decode_run_s(model: StepTime, decode_seqs: int, decode_pairs: int, steps: int, /) -> float: ...
def locate(values: _Floats, start: int, size: int, x: float, /) -> tuple[int, float]: ...
def dense_s(values: _Floats, layout: _Ints, tokens: int, sequences: int, /) -> float: ...
def curve_s(values: _Floats, layout: _Ints, table: int, x: float, /) -> float: ...
def grid2_s(values: _Floats, layout: _Ints, table: int, x: float, y: float, /) -> float: ...
def grid4_s(
    values: _Floats, layout: _Ints, table: int, q: float, p: float, n: float, c: float, /
) -> float: ...

# cosched_plan.h, offline.h
def fit(
    sequences: _Rows,
    running: NDArray[np.int32],
    model: StepTime,
    online: Sums,
    first: int,
    resident: int,
    computed: int,
    wanted: int,
    budget: int,
    most_s: float,
    /,
) -> tuple[int, int]: ...
def slack_s(ttft_s: float, tpot_s: float, waited_s: float, tokens: int, /) -> float: ...
def limit_s(alone_s: float, slack_s: float, as_alone: bool, arrival_s: float, /) -> float: ...
def arrival_s(shortest_s: float, ttft_s: float, /) -> float: ...
def worth(step_tokens: int, cached: int, computed: int, lost: int, step_s: float, /) -> float: ...

# lengths.h
def set_levels(
    hazard: _Floats, per_hazard: _Floats, stratum_hazard: _Floats, shift: _Ints, /
) -> None: ...
def hazard(row: _Floats, g: float, /) -> float: ...
def tokens_at(row: _Floats, h: float, /) -> float: ...
def conditional_quantile(row: _Floats, g: float, u: float, /) -> float: ...
def stratum_of(key: int, seed: int, /) -> int: ...
def draw_levels(row: _Floats, g: int, key: int, seed: int, totals: _Ints, i: int, /) -> None: ...

# models.h
def standardise(rows: _Short, mean: _Short, scale: _Short, most: float, /) -> None: ...
def sum_words(words: _Short, numbers: _Ints, counts: _Ints, means: _Short, /) -> None: ...
def forward(
    rows: _Short,
    words: _Short,
    first: _Short,
    second: _Short,
    last: _Short,
    hidden: _Floats,
    shares: _Floats,
    /,
) -> None: ...
def quantiles(
    probabilities: _Floats, levels: _Floats, edges: _Floats, tail_mean: float, found: _Floats, /
) -> None: ...
def means(
    probabilities: _Floats, limits: _Floats, edges: _Floats, tail_mean: float, found: _Floats, /
) -> None: ...
def differences(below: _Floats, /) -> None: ...
def experience(
    prior: _Floats, reached: _Floats, passed: _Floats, worth: float, below: _Floats, /
) -> None: ...
def recalibrate(below: _Floats, levels: _Floats, corrected: _Floats, /) -> None: ...
def regress(
    probabilities: _Floats,
    inputs: _Floats,
    weights: _Floats,
    covariance: _Floats,
    square: float,
    centre_logs: _Floats,
    upper_logs: _Floats,
    scale: float,
    found: _Floats,
    /,
) -> None: ...
def shift(
    probabilities: _Floats,
    below: _Floats,
    slope: float,
    offset: float,
    spread: float,
    centre_logs: _Floats,
    upper_logs: _Floats,
    knots: _Floats,
    tail: _Floats,
    moved: _Floats,
    /,
) -> None: ...

# regression.h
def update(theta: _Floats, p: _Floats, x: _Floats, error: float, forgetting: float, /) -> None: ...
def widen(theta: _Floats, p: _Floats, variance: float, shares: _Floats, /) -> None: ...
def non_negative(theta: _Floats, p: _Floats, /) -> None: ...
