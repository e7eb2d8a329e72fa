"""The results of a run on paced engines."""

import json
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from foretell.tools.intervals import percentile
from foretell.tools.live.recording import Served
from foretell.tools.live.report import FORETELL, LATENCIES
from foretell.tools.live.simple import SIMPLE, replayed

MOST_LATE = 0.05
"""The largest lateness of steps that counts: a run beyond it lacked CPU time and is made again."""
METRICS = {
    "ttft_mean_s": "mean TTFT, s",
    "ttft_p99_s": "P99 TTFT, s",
    "e2e_mean_s": "mean e2e, s",
    "e2e_p99_s": "P99 e2e, s",
}
Pairs = dict[str, list[list[float]]]
"""Predicted and actual seconds of requests, by predictor."""
CACHED = "cached"
"""A key beside the kinds of latency: the prompt's tokens that were found cached."""
ANNOUNCED = "announced"
"""A key for announced latencies: for each kind the value to plan with, the P90 and the actual
seconds of each request, in the order of placement."""


@dataclass(frozen=True, slots=True)
class Run:
    """One round of one policy in one setting. Latencies are the clients', in seconds."""

    name: str
    ttft_s: list[float]
    e2e_s: list[float]
    within: list[bool]
    """Whether each request with a target met it."""
    preemptions: int
    degraded: dict[str, int]
    """Placements that lacked something, by what was missing."""
    step_lateness: float
    """By how much steps took longer than due, as a ratio, on the worst engine."""
    bubbles: float
    """Time of engines without work while a request waits, as a ratio of the time of all steps."""
    cores_busy: float
    predicted: dict[str, Pairs]
    """By kind of latency, and by `CACHED` and `ANNOUNCED`."""

    def figures(self) -> dict[str, float]:
        """`METRICS` of this run."""
        return {
            "ttft_mean_s": fmean(self.ttft_s),
            "ttft_p99_s": percentile(self.ttft_s, 99),
            "e2e_mean_s": fmean(self.e2e_s),
            "e2e_p99_s": percentile(self.e2e_s, 99),
        }

    def columns(self, kind: str) -> Pairs:
        """Predicted and actual seconds of each request by predictor, `ANNOUNCED` included."""
        pairs = [[typical_s, actual_s] for typical_s, _, actual_s in self._announced(kind)]
        return {**self.predicted[kind], ANNOUNCED: pairs}

    def kept(self, kind: str) -> list[bool]:
        """Whether each request kept to its announced P90."""
        return [actual_s <= p90_s for _, p90_s, actual_s in self._announced(kind)]

    def _announced(self, kind: str) -> list[list[float]]:
        """Of each request the announced latency, its P90, and the actual one, in seconds."""
        return self.predicted.get(ANNOUNCED, {}).get(kind, [])

    def line(self) -> str:
        """A summary for the terminal."""
        found = ", ".join(f"{key} {value:.2f}" for key, value in self.figures().items())
        return (
            f"{self.name}: {found}, {self.preemptions} preemptions, "
            f"degraded {self.degraded}, steps {self.step_lateness:+.1%}, "
            f"{self.bubbles:.2%} bubbles, "
            f"{self.cores_busy} cores busy"
        )


def predicted(log: Path, counted: Collection[str]) -> dict[str, Pairs]:
    """The predictions for the counted requests, by Foretell and by every simple predictor.

    Simple predictors see the chosen engine and the expected lengths. All predictors see every
    request of the log; latencies count from the placement.
    """
    entries = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    finished = [entry for entry in entries if entry["finished"] and entry["ttft_s"]]
    engines: dict[str, list[Served]] = defaultdict(list)
    for entry in finished:
        engines[entry["instance_id"]].append(_served(entry, counted))
    found: dict[str, Pairs] = {kind: defaultdict(list) for kind in LATENCIES}
    for served in engines.values():
        served.sort(key=lambda request: request.decided_unix_s)
        for kind, pairs in found.items():
            actual = LATENCIES[kind]
            columns = {name: replayed(served, make, actual) for name, make in SIMPLE.items()}
            columns[FORETELL] = [_predicted(request, kind) for request in served]
            for name, column in columns.items():
                pairs[name] += [
                    [round(predicted_s, 4), round(actual(request), 4)]
                    for predicted_s, request in zip(column, served, strict=True)
                    if request.measured and _predicted(request, kind)
                ]
    found[CACHED] = {
        FORETELL: [
            [entry["predicted_cached_tokens"] or 0, entry["cached_tokens"]]
            for entry in finished
            if _is_counted(entry, counted) and entry.get("cached_tokens") is not None
        ]
    }
    found[ANNOUNCED] = {kind: _announced(finished, counted, kind) for kind in LATENCIES}
    return {kind: dict(pairs) for kind, pairs in found.items()}


def _announced(
    finished: Sequence[dict[str, Any]], counted: Collection[str], kind: str
) -> list[list[float]]:
    names = f"announced_{kind}_s", f"announced_{kind}_p90_s", f"{kind}_s"
    return [
        [round(entry[name], 4) for name in names]
        for entry in sorted(finished, key=lambda each: float(each["placed_unix_s"]))
        if _is_counted(entry, counted) and entry["announced_e2e_s"] is not None
    ]


def _is_counted(entry: dict[str, Any], counted: Collection[str]) -> bool:
    return entry["request_id"].rpartition("-")[2] in counted


def _served(entry: dict[str, Any], counted: Collection[str]) -> Served:
    decided_s = entry["time_unix_s"] - entry["e2e_s"]
    return Served(
        request_id=entry["request_id"],
        prompt_tokens=entry["prompt_tokens"] or entry["predicted_prompt_tokens"],
        output_tokens=round(entry["predicted_output_tokens"]),
        measured=_is_counted(entry, counted),
        asked_unix_s=decided_s - entry["placement_s"],
        decided_unix_s=decided_s,
        first_unix_s=decided_s + entry["ttft_s"],
        last_unix_s=decided_s + entry["e2e_s"],
        completed_unix_s=decided_s + entry["e2e_s"],
        predicted_ttft_s=entry["predicted_ttft_s"] or 0.0,
        predicted_e2e_s=entry["predicted_e2e_s"] or 0.0,
        answer_delay_s=0.0,
        snapshot_age_s=entry["snapshot_age_s"] or 0.0,
        calibration_steps=entry["calibration_steps"] or 0,
    )


def _predicted(request: Served, kind: str) -> float:
    """The predicted seconds; 0 without a prediction."""
    return request.predicted_ttft_s if kind == "ttft" else request.predicted_e2e_s
