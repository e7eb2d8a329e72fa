"""Finished runs: what is kept of each, and what all of a setting come to."""

import json
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from bench.stats import interval, percentile
from foretell.tools.live.recording import Served
from foretell.tools.live.report import FORETELL, LATENCIES
from foretell.tools.live.simple import SIMPLE, replayed

REFERENCE = "slo"
MOST_LATE = 0.05
"""A run whose steps were later than that had not the CPU that it needs: it does not count, and is
made again."""
METRICS = {
    "ttft_mean_s": "mean TTFT, s",
    "ttft_p99_s": "P99 TTFT, s",
    "e2e_mean_s": "mean e2e, s",
    "e2e_p99_s": "P99 e2e, s",
}
Pairs = dict[str, list[list[float]]]
"""Foretold and actual seconds of requests, by who foretold them."""
TOKENS, CACHED = "tokens", "cached"
"""The kinds of what is no latency: the answers' tokens, and the prompt's that were found cached,
foretold and actual."""


@dataclass(frozen=True, slots=True)
class Run:
    """One round of one policy in one setting. Latencies are the clients', in seconds."""

    setting: str
    round: int
    policy: str
    asked: int
    """Requests that were to be counted."""
    ttft_s: list[float]
    e2e_s: list[float]
    within: list[bool]
    """Whether each request with a target met it."""
    preemptions: int
    placed: int
    degraded: dict[str, int]
    """Placements that did without something, by what that was."""
    step_lateness: float
    """How much longer steps took than they should, on the engine where it was the most."""
    cores_busy: float
    load_1min: float
    foretold: dict[str, Pairs]
    """By kind of latency."""

    def figures(self) -> dict[str, float]:
        """`METRICS` of this run."""
        return {
            "ttft_mean_s": fmean(self.ttft_s),
            "ttft_p99_s": percentile(self.ttft_s, 99),
            "e2e_mean_s": fmean(self.e2e_s),
            "e2e_p99_s": percentile(self.e2e_s, 99),
        }

    def line(self) -> str:
        """For the terminal."""
        found = ", ".join(f"{key} {value:.2f}" for key, value in self.figures().items())
        return (
            f"{self.setting} {self.round} {self.policy}: {found}, {self.preemptions} preemptions, "
            f"degraded {self.degraded}, steps {self.step_lateness:+.1%}, "
            f"{self.cores_busy} cores busy"
        )


class Kept:
    """The runs in a file, so that an interrupted benchmark goes on."""

    def __init__(self, path: Path | None) -> None:
        """Without a path runs are kept in memory alone."""
        self._path = path
        self._runs: list[Run] = []
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                self._count(Run(**json.loads(line)))

    def has(self, setting: str, round_: int, policy: str, asked: int) -> bool:
        """Whether that run is there."""
        wanted = (setting, round_, policy, asked)
        return any((r.setting, r.round, r.policy, r.asked) == wanted for r in self._runs)

    def add(self, run: Run) -> None:
        """Keep a run."""
        self._count(run)
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(run)) + "\n")

    def _count(self, run: Run) -> None:
        if run.step_lateness <= MOST_LATE:
            self._runs.append(run)

    def complete(self, setting: str, policies: Sequence[str]) -> dict[str, list[Run]]:
        """The runs of all rounds that every policy has served, by policy."""
        rounds: dict[int, dict[str, Run]] = defaultdict(dict)
        for run in self._runs:
            if run.setting == setting:
                rounds[run.round][run.policy] = run
        whole = [rounds[n] for n in sorted(rounds) if set(policies) <= set(rounds[n])]
        return {policy: [runs[policy] for runs in whole] for policy in policies}


def foretold(log: Path, counted: Collection[str]) -> dict[str, Pairs]:
    """What was foretold of the counted requests, by Foretell and by every simple predictor, and
    of their answers' lengths.

    Simple predictors see the engine that was chosen, and the lengths that were expected. All see
    every request of the log; latencies count from the placement.
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
    found[TOKENS] = {
        FORETELL: [
            [entry["predicted_output_tokens"], entry["output_tokens"]]
            for entry in finished
            if _is_counted(entry, counted)
        ]
    }
    found[CACHED] = {
        FORETELL: [
            [entry["predicted_cached_tokens"] or 0, entry["cached_tokens"]]
            for entry in finished
            if _is_counted(entry, counted) and entry.get("cached_tokens") is not None
        ]
    }
    return {kind: dict(pairs) for kind, pairs in found.items()}


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
    """0 where nothing was predicted."""
    return request.predicted_ttft_s if kind == "ttft" else request.predicted_e2e_s


def summary(found: dict[str, list[Run]]) -> dict[str, Any]:
    """The figures of a setting, as JSON."""
    reference = [run.figures() for run in found.get(REFERENCE, [])]
    rounds = len(reference)
    return {
        "rounds": rounds,
        "policies": {policy: _of_policy(runs, reference) for policy, runs in found.items() if runs},
        "foretold": _errors(found.get(REFERENCE, [])),
    }


def _of_policy(runs: Sequence[Run], reference: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Means over rounds; differences are the policy less the reference, paired by round."""
    figures = [run.figures() for run in runs]
    differences = {}
    for metric in METRICS:
        each = [own[metric] - ref[metric] for own, ref in zip(figures, reference, strict=True)]
        mean, half = interval(each) if len(each) > 1 else (fmean(each), None)
        differences[metric] = {"mean": mean, "half_width": half}
    within = [one for run in runs for one in run.within]
    placed = sum(run.placed for run in runs)
    missing = {what for run in runs for what in run.degraded}
    return {
        **{metric: fmean(one[metric] for one in figures) for metric in METRICS},
        "less_reference": differences,
        "preemptions": fmean(run.preemptions for run in runs),
        "degraded": {
            what: sum(run.degraded.get(what, 0) for run in runs) / placed for what in missing
        },
        "within": fmean(within) if within else None,
        "step_lateness": max(run.step_lateness for run in runs),
        "cores_busy": fmean(run.cores_busy for run in runs),
        "load_1min": fmean(run.load_1min for run in runs),
    }


def _errors(runs: Sequence[Run]) -> dict[str, Any]:
    """|foretold - actual| / actual over all rounds, median and P90, by kind and who foretold."""
    found: dict[str, Any] = {}
    for kind in (*LATENCIES, TOKENS):
        pairs: dict[str, list[float]] = defaultdict(list)
        for run in runs:
            for name, own in run.foretold.get(kind, {}).items():
                pairs[name] += [abs(predicted - actual) / actual for predicted, actual in own]
        found[kind] = {
            name: {"median": median(errors), "p90": percentile(errors, 90), "count": len(errors)}
            for name, errors in pairs.items()
            if errors
        }
    return found
