"""Errors of every predictor of one measurement."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from statistics import fmean, median
from typing import Any

from foretell.tools.intervals import quantile
from foretell.tools.live.recording import Recording, Served
from foretell.tools.live.simple import SIMPLE, replayed

FORETELL = "foretell"
LATENCIES: dict[str, Callable[[Served], float]] = {
    "ttft": lambda request: request.ttft_s,
    "e2e": lambda request: request.e2e_s,
}
_PREDICTED: dict[str, Callable[[Served], float]] = {
    "ttft": lambda request: request.predicted_ttft_s + request.answer_delay_s,
    "e2e": lambda request: request.predicted_e2e_s + request.answer_delay_s,
}
_DIGITS = 4
TPOT = "tpot"


@dataclass(frozen=True, slots=True)
class Pairs:
    """Predicted and actual seconds of the measured requests, in order."""

    predicted_s: list[float]
    actual_s: list[float]


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors, (predicted - actual) / actual."""

    mean: float
    """The mean of absolute errors; `median` and `p90` are of absolute errors, too."""
    median: float
    p90: float
    signed_median: float
    count: int


def errors(pairs: Pairs) -> Errors:
    """The errors of pairs; ValueError if a prediction is not finite, or there is none."""
    if not pairs.actual_s or not all(map(isfinite, pairs.predicted_s)):
        raise ValueError("some requests were predicted never to end, or there are none")
    signed = [p / a - 1.0 for p, a in zip(pairs.predicted_s, pairs.actual_s, strict=True)]
    absolute = [abs(error) for error in signed]
    return Errors(
        fmean(absolute), median(absolute), quantile(absolute, 0.9), median(signed), len(signed)
    )


def all_pairs(recording: Recording) -> dict[str, dict[str, Pairs]]:
    """Predicted and actual latencies, by predictor and kind of latency."""
    requests = recording.requests
    found: dict[str, dict[str, Pairs]] = {}
    for kind, actual in LATENCIES.items():
        columns = {FORETELL: [_PREDICTED[kind](request) for request in requests]}
        for name, make in SIMPLE.items():
            columns[name] = replayed(requests, make, actual)
        for name, column in columns.items():
            chosen = [(p, r) for p, r in zip(column, requests, strict=True) if r.measured]
            found.setdefault(name, {})[kind] = Pairs(
                [p for p, _ in chosen], [actual(r) for _, r in chosen]
            )
    return found


def own_pairs(recording: Recording) -> dict[str, Pairs]:
    """Predicted and actual latencies of Foretell alone, and times per token, by kind."""
    measured = [request for request in recording.requests if request.measured]
    found = {
        kind: Pairs([_PREDICTED[kind](r) for r in measured], [actual(r) for r in measured])
        for kind, actual in LATENCIES.items()
    }
    # On an overloaded host, all tokens of an answer may arrive at once.
    long = [request for request in measured if request.output_tokens > 1 and request.tpot_s > 0.0]
    found[TPOT] = Pairs([r.predicted_tpot_s for r in long], [r.tpot_s for r in long])
    return found


def errors_of(found: Mapping[str, Mapping[str, Pairs]]) -> dict[str, Any]:
    """The errors of pairs by predictor and kind of latency, as JSON."""
    return {
        name: {
            kind: {
                key: value if key == "count" else round(value, _DIGITS)
                for key, value in asdict(errors(pairs)).items()
            }
            for kind, pairs in kinds.items()
        }
        for name, kinds in found.items()
    }
