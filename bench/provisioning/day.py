"""How many instance-hours does each strategy need for a day with tides and bursts?

Rates and burstiness are those of a production service (ServeGen), lengths those of ShareGPT. What
has a parameter is tuned on one day; other days are reported.
"""

import argparse
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from bench.provisioning import traffic
from bench.provisioning.cluster import ENGINE, PROFILE, engines
from bench.provisioning.contenders import Oracle, Surprised
from bench.provisioning.traffic import Burst, Day
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from bench.runs import run_each
from bench.stats import interval
from foretell.model import Slo
from foretell.placement import PlacementConfig
from foretell.policy import make_policy
from foretell.provision import ProvisionConfig, Strategy
from foretell.provision.strategies import make_strategy
from foretell.provision.strategies.foresight import WINDOW_S, Foresight
from foretell.sim import ClusterConfig, Provisioning, Report, simulate
from foretell.tools.pictures import figure, save
from foretell.workload import Arrival

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="20 minutes",
    paths={"RATES": "ServeGen's clients, `*.windows.parquet`", "LENGTHS.csv": "ShareGPT's lengths"},
    processes=1,
)
SLO = Slo(2.0, 0.1)
WITHIN = 0.99
HOURS, MEAN_QPS, MOST, EVERY_S = 2.0, 4.0, 16, 15.0
KINDS = {"tides": 0, "tides and bursts": 8}
"""Bursts of each kind of day."""
TUNED_DAY, TUNED_COLD_START_S = 1, 120.0
DAYS = (3, 4, 5)
"""Days that are reported, each with a seed of its own."""
CANDIDATES: dict[str, tuple[float, ...]] = {
    "static": (2, 3, 4, 5, 6, 8, 12),
    "target": (5, 7, 10, 13, 16, 20),
    "foresight": (0.9, 0.93, 0.95, 0.97, 0.99),
    "oracle": (1.8, 2.0, 2.2, 2.4),
    "surprised": (1.0, 1.5, 2.5, 3.5, 5.0),
}
"""`instances`, `requests`, `within`, `capacity_rps` and `spare` that are tried on the tuned day of
each kind."""
CONFIDENCE = 0.5
"""The confidence of `foresight`. With 99% asked of each minute a higher one took more hours on the
tuned days, where this one already kept more than 99%."""
ALL_KNOWING = ("oracle", "surprised")
UNTUNED = ("saturation", "relief", "preempt")
COLUMNS = (
    "within targets",
    "P99 TTFT, s",
    "instance-hours",
    "of oracle's",
    "of target's",
    "in time an instance-hour",
    "changes an hour",
)


@dataclass(frozen=True, slots=True)
class Case:
    """One run of the simulator."""

    kind: str
    """One of `KINDS`."""
    strategy: str
    parameter: float
    """One of `CANDIDATES`; 0 where there are none."""
    day: int
    cold_start_s: float
    drawn: bool = False
    """Its sizes over time are kept."""


def run(case: Case, rates_path: Path, lengths_path: Path) -> dict[str, Any]:
    """The figures of one case; requests depend on the day alone."""
    rates = traffic.read_rates(rates_path)
    lengths = traffic.read_lengths(lengths_path, ENGINE.max_model_len)
    day = Day(case.day, HOURS, MEAN_QPS, KINDS[case.kind])
    day_before = replace(day, number=case.day - 1)
    requests, bursts = traffic.arrivals(rates, lengths, day, case.day)
    arrivals = [replace(a, slo=SLO) for a in requests]
    known = Known(
        [a.t_s for a in arrivals],
        traffic.window_rates(rates, day),
        [a.t_s for a in traffic.arrivals(rates, lengths, day_before, case.day - 1)[0]],
        bursts,
        day.window_s,
    )
    provisioning = Provisioning(
        partial(strategy_of, case, known),
        ProvisionConfig(
            minimum=1,
            maximum=MOST,
            cool_down_s=0.0 if case.strategy in ALL_KNOWING else 300.0,
            cold_start_s=case.cold_start_s,
        ),
        initial=3,
        cold_start_s=case.cold_start_s,
        every_s=EVERY_S,
    )
    # For `preempt` the latency of every request is predicted, on the instance that has the fewest
    # requests among four drawn at random.
    predicts = case.strategy == "preempt"
    config = ClusterConfig(
        engines(MOST + 2),
        provisioning=provisioning,
        placement=PlacementConfig(instance_wait_s=600.0, candidates=1 if predicts else 0),
        foretell_every=0,
    )
    policies = [make_policy("predicted_latency" if predicts else "least_outstanding")]
    report = simulate(config, arrivals, policies, Random(case.day))
    found = {**asdict(case), **figures(report, day)}
    return {**found, **curves(report, arrivals)} if case.drawn else found


class Known(NamedTuple):
    """What may be known of a day."""

    times_s: Sequence[float]
    """When requests arrive."""
    tides: Sequence[float]
    """Requests a second without bursts, by window."""
    before_s: Sequence[float]
    """When the requests of the day before arrived."""
    bursts: Sequence[Burst]
    window_s: float


def strategy_of(case: Case, known: Known) -> Strategy:
    """The strategy of a case; `foresight` has forecast the arrivals of the day before."""
    match case.strategy:
        case "oracle":
            return Oracle(known.times_s, case.parameter)
        case "surprised":
            return Surprised(known.tides, known.window_s, known.bursts, case.parameter)
        case "static":
            return make_strategy("static", instances=int(case.parameter))
        case "target":
            return make_strategy("target", requests=case.parameter)
        case "foresight":
            return _foresight(case, known)
        case _:
            calm = {} if case.strategy == "saturation" else {"calm_ratio": 0.5}
            return make_strategy(case.strategy, **calm)


def _foresight(case: Case, known: Known) -> Foresight:
    """It has lived through a day that ends at 0."""
    found = Foresight(
        ttft_s=SLO.ttft_s,
        tpot_s=SLO.tpot_s,
        within=case.parameter,
        confidence=CONFIDENCE,
        day_s=HOURS * 3600.0,
    )
    begins_s, arrived = -HOURS * 3600.0, 0
    found.forecast.observe(begins_s, 0)
    for number in range(1, round(HOURS * 3600.0 / EVERY_S) + 1):
        before, arrived = arrived, bisect_left(known.before_s, number * EVERY_S)
        now_s = begins_s + number * EVERY_S
        found.forecast.observe(now_s, arrived - before)
        for ahead_s in (0.0, case.cold_start_s):
            found.forecast.upper(now_s, ahead_s, WINDOW_S, CONFIDENCE)
    return found


def figures(report: Report, day: Day) -> dict[str, float]:
    """Ratios, seconds, instance-hours and counts; requests within their targets."""
    hours = report.instance_s / 3600.0
    good = sum(r.within_slo for r in report.served)
    steps = [bool(d.start or d.drain or d.stop) for d in report.decisions]
    return {
        "within": report.within_slo,
        "ttft_p99_s": report.quantile(0.99, lambda r: r.ttft_s),
        "hours": hours,
        "good_per_hour": good / hours,
        "changes_per_hour": sum(steps) / day.hours,
        "requests": len(report.served),
    }


def curves(report: Report, arrivals: Sequence[Arrival]) -> dict[str, Any]:
    """What is drawn: (seconds, instances that are paid for), and arrivals in every minute."""
    counts: dict[int, int] = {}
    for arrival in arrivals:
        counts[int(arrival.t_s // 60)] = counts.get(int(arrival.t_s // 60), 0) + 1
    return {
        "sizes": [(round(size.at_s), size.instances) for size in report.sizes],
        "arrivals": [(60 * minute, count / 60) for minute, count in sorted(counts.items())],
    }


def best(runs: Sequence[dict[str, Any]]) -> float:
    """The parameter with the fewest instance-hours of those that keep enough within the targets,
    or else with the most within them."""
    enough = [run for run in runs if run["within"] >= WITHIN]
    if enough:
        return float(min(enough, key=lambda r: r["hours"])["parameter"])
    return float(max(runs, key=lambda r: r["within"])["parameter"])


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cold-starts", type=float, nargs="+", default=[20, 60, 120, 300])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--strategies", nargs="+", default=[*CANDIDATES, *UNTUNED])


def measure(options: argparse.Namespace) -> Numbers:
    """Tune, then run every strategy on the reported days."""
    one = partial(run, rates_path=options.rates, lengths_path=options.lengths)
    names = options.strategies
    tuning = [
        Case(kind, strategy, parameter, TUNED_DAY, TUNED_COLD_START_S)
        for kind in options.kinds
        for strategy, parameters in CANDIDATES.items()
        for parameter in parameters
        if strategy in names
    ]
    tried = run_each(one, tuning, options.processes)
    chosen = {
        kind: {
            name: best([r for r in tried if (r["kind"], r["strategy"]) == (kind, name)])
            for name in CANDIDATES
            if name in names
        }
        for kind in options.kinds
    }
    drawn = options.kinds[-1], DAYS[0], options.cold_starts[-1]
    cases = [
        Case(
            kind,
            name,
            chosen[kind].get(name, 0.0),
            day,
            cold_s,
            drawn=(kind, day, cold_s) == drawn,
        )
        for kind in options.kinds
        for name in names
        for cold_s in options.cold_starts
        for day in DAYS
    ]
    runs = run_each(one, cases, options.processes)
    if options.write:
        draw([run for run in runs if run["drawn"]], BENCH.result(".png"))
    for each in runs:
        each.pop("sizes", None), each.pop("arrivals", None)
    return {"most": MOST, "tuning": tried, "chosen": chosen, "runs": runs}


def tables(numbers: Numbers) -> Blocks:
    """For each kind of day the parameters, and a table for each cold start."""
    runs: list[dict[str, Any]] = numbers["runs"]
    requests = sorted(run["requests"] for run in runs)
    lines = [
        made_by(numbers),
        "Laboratory: simulated, true output lengths. "
        f"At most {numbers['most']} engines of {PROFILE}; "
        f"{requests[0]:,} to {requests[-1]:,} requests in {HOURS:g} hours. "
        f"Targets: TTFT {SLO.ttft_s:g} s and TPOT {SLO.tpot_s * 1000:g} ms. "
        f"Means over the days {', '.join(map(str, DAYS))}, each with a seed of its own, "
        "with half the width of the 95% t-interval. Instance-hours count from the start of an "
        "instance until it is gone.\n",
    ]
    for kind, chosen in numbers["chosen"].items():
        named = ", ".join(f"{name} {value:g}" for name, value in chosen.items())
        lines.append(
            f"### {kind.capitalize()}\n\n{KINDS[kind]} bursts. Tuned on day {TUNED_DAY} at a cold "
            f"start of {TUNED_COLD_START_S:g} s: {named}.\n"
        )
        of_kind = [run for run in runs if run["kind"] == kind]
        for cold_s in sorted({run["cold_start_s"] for run in of_kind}):
            mine = [run for run in of_kind if run["cold_start_s"] == cold_s]
            header = (f"cold start {cold_s:g} s", *COLUMNS)
            names = dict.fromkeys(run["strategy"] for run in mine)
            lines.append(markdown_table(header, [_row(name, mine) for name in names]))
    return {"tables": "\n".join(lines)}


def _row(strategy: str, runs: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    mine, oracle, target = (
        [run for run in runs if run["strategy"] == name] for name in (strategy, "oracle", "target")
    )

    def cell(name: str, digits: int) -> str:
        mean, half = interval([run[name] for run in mine])
        return f"{mean:,.{digits}f} ± {half:,.{digits}f}"

    def ratio(to: Sequence[dict[str, Any]]) -> str:
        hours = sum(run["hours"] for run in to)
        return f"{sum(run['hours'] for run in mine) / hours:.0%}" if hours else ""

    return (
        strategy,
        cell("within", 4),
        cell("ttft_p99_s", 2),
        cell("hours", 2),
        ratio(oracle),
        ratio(target),
        cell("good_per_hour", 0),
        cell("changes_per_hour", 1),
    )


def draw(runs: Sequence[dict[str, Any]], path: Path) -> None:
    """Instances over a reported day, beside the arrivals."""
    picture = figure(10.5, 7.0)
    above, below = picture.subplots(2, 1, sharex=True)
    above.plot(*zip(*runs[0]["arrivals"], strict=True), color="#606060")
    above.set_ylabel("requests/s")
    for each in runs:
        below.step(*zip(*each["sizes"], strict=True), where="post", label=each["strategy"])
    below.set_ylabel("instances")
    below.set_xlabel("s")
    below.legend(ncols=3)
    save(picture, path)
