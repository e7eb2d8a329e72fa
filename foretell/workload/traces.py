"""Parse published traces: lengths of requests, and when they came, if known.

Two formats: CSV with a header, with the column names of the well-known traces, and Mooncake's JSON
lines, whose `hash_ids` name the prompt's blocks (arXiv 2407.00079).
"""

import csv
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from math import inf

from foretell.model import LengthEstimate, Slo
from foretell.workload.arrivals import Draws, gamma
from foretell.workload.stream import Arrival

TIMES = ("t", "arrived_at", "arrival_time", "timestamp")
"""Columns that may hold the arrival time in seconds; the first that is there is used."""
INPUTS = (
    "in_tok",
    "input_tokens",
    "prompt_tokens",
    "num_prefill_tokens",
    "contexttokens",
    "input_length",
)
OUTPUTS = (
    "out_tok",
    "output_tokens",
    "completion_tokens",
    "num_decode_tokens",
    "generatedtokens",
    "output_length",
)
TTFT_SLO, TPOT_SLO, PRIORITY = "ttft_slo_s", "tpot_slo_s", "priority"
"""Optional columns; an empty cell is no target, or priority 0."""
EXPECTED = "expected_tokens"
"""Optional column with the mean output tokens, as estimated beforehand. If it is there, columns
`p50`, `p97.5`, ... are quantiles, with levels in percent."""
_QUANTILE = re.compile(r"p([1-9]\d?(?:\.\d+)?|0\.\d*[1-9])")
_NO_TIME = "XXX"  # in place of a time in NanoFlow's copies of traces
_MOONCAKE_RESOLUTION_S = 3.0


@dataclass(frozen=True, slots=True)
class Trace:
    """The contents of a trace file."""

    requests: tuple[Arrival, ...]
    """Without ids; in order of time, or in the order of the file if there are no times."""
    timed: bool
    resolution_s: float = 0.0
    """Times are rounded down to multiples of this."""


def parse_csv(lines: Iterable[str]) -> Trace:
    """Parse CSV with a header; ValueError that names the missing columns or the wrong line."""
    reader = csv.DictReader(lines)
    columns = {name.strip().lower(): name for name in reader.fieldnames or ()}
    prompt, output = _column(columns, INPUTS), _column(columns, OUTPUTS)
    if prompt is None or output is None:
        wanted = f"one of {', '.join(INPUTS)} and one of {', '.join(OUTPUTS)}"
        raise ValueError(f"the header needs {wanted}; it has {', '.join(columns) or 'nothing'}")
    time = _column(columns, TIMES)
    slo = [columns.get(name) for name in (TTFT_SLO, TPOT_SLO)]
    priority = columns.get(PRIORITY)
    levels = _levels(columns)
    requests = []
    for row in reader:
        try:
            t_s = 0.0
            if time is not None and row[time] == _NO_TIME:
                time = None
            if time is not None:
                t_s = float(row[time])
            requests.append(
                Arrival(
                    t_s,
                    _tokens(row[prompt]),
                    _tokens(row[output]),
                    "",
                    priority=int(row[priority] or 0) if priority is not None else 0,
                    slo=Slo(*(_target_s(row[name]) if name is not None else inf for name in slo)),
                    length=_believed(row, columns.get(EXPECTED), levels),
                )
            )
        except (TypeError, ValueError) as error:
            raise ValueError(f"line {reader.line_num}: {error}") from error
    return _trace(requests, timed=time is not None)


def parse_mooncake(lines: Iterable[str]) -> Trace:
    """Parse JSON lines with `timestamp` (ms), `input_length`, `output_length` and `hash_ids`."""
    requests = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            requests.append(
                Arrival(
                    row["timestamp"] / 1e3,
                    _tokens(row["input_length"]),
                    _tokens(row["output_length"]),
                    "",
                    tuple(map(int, row.get("hash_ids", ()))),
                )
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"line {number}: {error!r}") from error
    return _trace(requests, timed=True, resolution_s=_MOONCAKE_RESOLUTION_S)


def arrivals_of(
    trace: Trace, draws: Draws, *, count: int = 0, qps: float = 0.0, cv: float = 1.0
) -> list[Arrival]:
    """A stream of the trace's requests, at `qps` per second (0: as in the trace).

    If the trace has times, its first `count` requests (0: all) come in its rhythm, which `qps`
    stretches or compresses; rounded times are spread over the resolution. Without times, requests
    come in a random order, each once and then in a new order until there are `count`, with Gamma
    gaps of coefficient of variation `cv` (1: Poisson).
    """
    if trace.timed:
        return _timed(trace, draws, count, qps)
    if qps <= 0:
        raise ValueError("the trace has no times: qps must say how many come a second")
    order: list[Arrival] = []
    count = count or len(trace.requests)
    while len(order) < count:
        order += _shuffled(trace.requests, draws)
    times_s = gamma(qps, cv, draws)
    return _named(order[:count], times_s)


def _timed(trace: Trace, draws: Draws, count: int, qps: float) -> list[Arrival]:
    requests = list(islice(trace.requests, count or None))
    if trace.resolution_s > 0:
        spread = [(r.t_s + trace.resolution_s * draws.random(), r) for r in requests]
    else:
        spread = [(r.t_s, r) for r in requests]
    spread.sort(key=lambda pair: pair[0])
    first_s, last_s = spread[0][0], spread[-1][0]
    scale = 1.0
    if qps > 0 and last_s > first_s:
        scale = (len(spread) - 1) / (last_s - first_s) / qps
    return _named([r for _, r in spread], (scale * (t_s - first_s) for t_s, _ in spread))


def _named(requests: Iterable[Arrival], times_s: Iterable[float]) -> list[Arrival]:
    """Each request at its time, with an id by its place."""
    pairs = enumerate(zip(requests, times_s, strict=False))
    return [replace(r, t_s=t_s, request_id=f"r{index}") for index, (r, t_s) in pairs]


def _shuffled(requests: Sequence[Arrival], draws: Draws) -> list[Arrival]:
    result = list(requests)
    for last in range(len(result) - 1, 0, -1):
        other = int(draws.random() * (last + 1))
        result[last], result[other] = result[other], result[last]
    return result


def _trace(requests: list[Arrival], *, timed: bool, resolution_s: float = 0.0) -> Trace:
    if not requests:
        raise ValueError("there are no requests in it")
    if timed:
        requests.sort(key=lambda request: request.t_s)
    return Trace(tuple(requests), timed, resolution_s)


def _column(columns: dict[str, str], names: Sequence[str]) -> str | None:
    return next((columns[name] for name in names if name in columns), None)


def _levels(columns: Mapping[str, str]) -> list[tuple[float, str]]:
    """The levels of the quantiles that have a column, ascending, and these columns."""
    found = ((_QUANTILE.fullmatch(name), column) for name, column in columns.items())
    return sorted((float(match[1]) / 100.0, column) for match, column in found if match)


def _believed(
    row: Mapping[str, str], expected: str | None, levels: Sequence[tuple[float, str]]
) -> LengthEstimate | None:
    """The estimate of the output tokens in a line; None if the trace has none."""
    if expected is None:
        return None
    tokens = [float(row[column]) for _, column in levels]
    mean = float(row[expected])
    if not (0 < mean < inf and all(a <= b < inf for a, b in pairwise([0.0, *tokens]))):
        raise ValueError(f"{mean} tokens with quantiles {tokens} are no length")
    quantiles = tuple((level, t) for (level, _), t in zip(levels, tokens, strict=True))
    return LengthEstimate(mean, quantiles, source="model")


def _target_s(text: str) -> float:
    """The target in a cell; infinite if it is empty."""
    target_s = float(text) if text and text.strip() else inf
    if not target_s > 0:
        raise ValueError(f"a target must be positive, not {text}")
    return target_s


def _tokens(value: str | int) -> int:
    """At least one: an engine computes no empty prompt, and samples at least one token."""
    return max(1, int(value))
