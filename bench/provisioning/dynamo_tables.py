"""What is told of Dynamo's planner."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.provisioning.cluster import PROFILE
from bench.provisioning.day import (
    DAYS,
    HOURS,
    KINDS,
    MEAN_QPS,
    MOST,
    SLO,
    TUNED_COLD_START_S,
    TUNED_DAY,
)
from bench.provisioning.dynamo_planners import CANDIDATES, INITIAL
from bench.report import Blocks, Numbers, made_by, markdown_table
from bench.stats import interval

COLUMNS = (
    "within targets",
    "P99 TTFT, s",
    "instance-hours",
    "in time an instance-hour",
    "changes an hour",
)


def tables(numbers: Numbers) -> Blocks:
    """One engine in both simulators; then for each kind of day what was tried, and a table for each
    cold start; then the steady day."""
    runs: list[dict[str, Any]] = numbers["runs"]
    versions = ", ".join(f"{name} {each}" for name, each in numbers["versions"].items())
    lines = [
        made_by(numbers),
        f"Laboratory: Dynamo's simulator ({versions}) with its planner, true output lengths. At "
        f"least 1, at most {MOST} workers, {INITIAL} at the beginning; engines with the step times "
        f"of {PROFILE}. Targets: TTFT {SLO.ttft_s:g} s and mean ITL {SLO.tpot_s * 1e3:g} ms. Means "
        f"over the days {', '.join(map(str, DAYS))} with half the width of the 95% t-interval. "
        "Instance-hours count from the start of a worker until it is gone, up to the last "
        "arrival.\n",
        _capacity_table(numbers["capacity"]),
    ]
    for kind, chosen in numbers["chosen"].items():
        named = "; ".join(f"{group}: {name}" for group, name in chosen.items())
        lines += [
            f"### {kind.capitalize()}\n\n{KINDS[kind]} bursts. {named}.\n",
            _static_table([run for run in numbers["static"] if run["kind"] == kind], runs, kind),
        ]
        of_kind = [run for run in runs if run["kind"] == kind]
        for cold_s in sorted({run["cold_start_s"] for run in of_kind}):
            mine = [run for run in of_kind if run["cold_start_s"] == cold_s]
            lines.append(_planner_table(f"cold start {cold_s:g} s", mine))
        lines.append(_tuning_table([run for run in numbers["tuning"] if run["kind"] == kind]))
    lines += [
        f"### Steady\n\n{MEAN_QPS:g} requests/s for {HOURS:g} hours (Poisson), cold start "
        f"{TUNED_COLD_START_S:g} s; changes after the first half hour. Tuned as for the first kind "
        "of day.\n",
        _planner_table("steady", numbers["steady"]),
    ]
    return {"tables": "\n".join(lines)}


def _capacity_table(found: Sequence[Mapping[str, float]]) -> str:
    engines = ("added", "whole", "our")
    rows = [
        (
            f"{each['qps']:g} requests/s",
            *(f"{each[f'{engine}_within']:.1%}" for engine in engines),
            *(f"{1e3 * each[f'{engine}_tpot_mean_s']:.1f} ms" for engine in engines),
        )
        for each in found
    ]
    named = ("Dynamo's, added", "whole", "ours")
    header = (
        "one engine",
        *(f"within targets, {named[0]}", *named[1:]),
        *(f"mean ITL, {named[0]}", *named[1:]),
    )
    return markdown_table(header, rows)


def _static_table(
    static: Sequence[Mapping[str, Any]], runs: Sequence[Mapping[str, Any]], kind: str
) -> str:
    """Per day: what each number of workers keeps, and the mean number of the tuned planners."""
    days = sorted({run["day"] for run in static})
    most = max(run["workers"] for run in static)
    by_case = {(run["day"], run["workers"]): run for run in static}
    rows = []
    for workers in range(INITIAL, most + 1):
        cells = [by_case.get((day, workers)) for day in days]
        rows.append((workers, *(f"{c['within']:.2%}" if c else "" for c in cells)))
    for group in CANDIDATES:
        means = []
        for day in days:
            mine = [
                run["hours"] / (run["end_s"] / 3600.0)
                for run in runs
                if (run["kind"], run["day"], run["planner"]) == (kind, day, group)
            ]
            means.append(f"{sum(mine) / len(mine):.1f}" if mine else "")
        rows.append((f"mean workers of *{group}*", *means))
    return markdown_table(("static workers", *(f"day {day}" for day in days)), rows)


def _planner_table(title: str, runs: Sequence[dict[str, Any]]) -> str:
    names = dict.fromkeys(run["planner"] for run in runs)
    by_name = {name: [run for run in runs if run["planner"] == name] for name in names}
    return markdown_table(
        (title, *COLUMNS), [(name, *_cells(mine)) for name, mine in by_name.items()]
    )


def _cells(runs: Sequence[dict[str, Any]]) -> Iterator[str]:
    every = [{**run, "good_per_hour": run["good"] / run["hours"]} for run in runs]
    digits = {
        "within": 4,
        "ttft_p99_s": 2,
        "hours": 2,
        "good_per_hour": 0,
        "changes_per_hour": 1,
    }
    for name, places in digits.items():
        mean, half = interval([run[name] for run in every])
        yield f"{mean:,.{places}f} ± {half:,.{places}f}"


def _tuning_table(tuning: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            run["planner"],
            f"{run['within']:.4f}",
            f"{run['ttft_p99_s']:.2f}",
            f"{run['hours']:.2f}",
            f"{run['changes_per_hour']:.1f}",
        )
        for run in tuning
    ]
    title = f"tried on day {TUNED_DAY}, cold start {TUNED_COLD_START_S:g} s"
    return markdown_table((title, *COLUMNS[:3], COLUMNS[4]), rows)
