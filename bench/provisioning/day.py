"""How many instance-hours does each strategy need for a day with tides and bursts?

Rates and burstiness are those of a production service (ServeGen), lengths those of ShareGPT.
Strategies with a parameter are tuned on one day; other days are reported.
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
from bench.provisioning.oracle import Oracle
from bench.provisioning.traffic import Day
from bench.report import Benchmark, Blocks, Numbers, made_by
from bench.runs import Kept, state_of_the_code
from foretell.model import Slo
from foretell.placement import PlacementConfig
from foretell.policy import make_policy
from foretell.provision import ProvisionConfig, Strategy
from foretell.provision.config import TUNING
from foretell.provision.strategies import make_strategy
from foretell.provision.strategies.foresight import Foresight
from foretell.sim import ClusterConfig, Provisioning, Report, simulate
from foretell.tools.intervals import plus_minus
from foretell.tools.markdown import markdown_table

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
"""Number of bursts in each kind of day."""
TUNED_DAY, TUNED_COLD_START_S = 1, 120.0
COLD_STARTS_S = (20.0, 60.0, 120.0, 300.0)
DAYS = (3, 4, 5)
"""The reported days, each with its own seed."""
CANDIDATES: dict[str, tuple[float, ...]] = {
    "static": (2, 3, 4, 5, 6, 8, 12),
    "target": (5, 7, 10, 13, 16, 20),
    "foresight": (0.9, 0.93, 0.95, 0.97, 0.99),
    "oracle": (1.8, 2.0, 2.2, 2.4),
}
"""Values of `instances`, `requests`, `within` and `capacity_rps` that are tried on the day for
tuning of each kind."""
CONFIDENCE = 0.5
"""The confidence of `foresight`. With 99% asked of each minute a higher one took more hours on the
days for tuning, where this one already kept more than 99%."""
ORACLE = "oracle"
UNTUNED = ("saturation",)


@dataclass(frozen=True, slots=True)
class Case:
    """One run of the simulator."""

    kind: str
    """One of `KINDS`."""
    strategy: str
    parameter: float
    """One of `CANDIDATES`; 0 if the strategy has none."""
    day: int
    cold_start_s: float


def run(case: Case, rates_path: Path, lengths_path: Path) -> dict[str, Any]:
    """The figures of one case; requests depend only on the day."""
    rates = traffic.read_rates(rates_path)
    lengths = traffic.read_lengths(lengths_path, ENGINE.max_model_len)
    day = Day(case.day, HOURS, MEAN_QPS, KINDS[case.kind])
    day_before = replace(day, number=case.day - 1)
    requests = traffic.arrivals(rates, lengths, day, case.day)
    arrivals = [replace(a, slo=SLO) for a in requests]
    before = traffic.arrivals(rates, lengths, day_before, case.day - 1)
    known = Known([a.t_s for a in arrivals], [a.t_s for a in before])
    provisioning = Provisioning(
        partial(strategy_of, case, known),
        ProvisionConfig(
            minimum=1,
            maximum=MOST,
            cool_down_s=0.0 if case.strategy == ORACLE else 300.0,
            cold_start_s=case.cold_start_s,
        ),
        initial=3,
        cold_start_s=case.cold_start_s,
        every_s=EVERY_S,
    )
    config = ClusterConfig(
        engines(MOST + 2),
        provisioning=provisioning,
        placement=PlacementConfig(instance_wait_s=600.0),
        foretell_every=0,
    )
    policies = [make_policy("least_outstanding")]
    report = simulate(config, arrivals, policies, Random(case.day))
    return {**asdict(case), **figures(report)}


class Known(NamedTuple):
    """What strategies may know of a day."""

    times_s: Sequence[float]
    """When requests arrive."""
    before_s: Sequence[float]
    """When the requests of the day before arrived."""


def strategy_of(case: Case, known: Known) -> Strategy:
    """The strategy of a case; `foresight` has already forecast the arrivals of the day before."""
    match case.strategy:
        case "oracle":
            return Oracle(known.times_s, case.parameter)
        case "static":
            return make_strategy("static", instances=int(case.parameter))
        case "target":
            return make_strategy("target", requests=case.parameter)
        case "foresight":
            return _foresight(case, known)
        case _:
            return make_strategy(case.strategy)


def _foresight(case: Case, known: Known) -> Foresight:
    """`foresight` after the day before, which ends at time 0."""
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
            found.forecast.upper(now_s, ahead_s, TUNING.window_s, CONFIDENCE)
    return found


def figures(report: Report) -> dict[str, float]:
    """The ratio of requests within their targets, instance-hours, and the number of requests."""
    return {
        "within": report.within_slo,
        "hours": report.instance_s / 3600.0,
        "requests": len(report.served),
    }


def best(runs: Sequence[dict[str, Any]]) -> float:
    """The parameter with the fewest instance-hours among those with enough requests within their
    targets; if there is none, the one with the most."""
    enough = [run for run in runs if run["within"] >= WITHIN]
    if enough:
        return float(min(enough, key=lambda r: r["hours"])["parameter"])
    return float(max(runs, key=lambda r: r["within"])["parameter"])


def measure(options: argparse.Namespace) -> Numbers:
    """Tune, then run every strategy on the reported days."""
    one = partial(run, rates_path=options.rates, lengths_path=options.lengths)
    kinds = list(KINDS)[:1] if options.quick else list(KINDS)
    tuning = [
        Case(kind, strategy, parameter, TUNED_DAY, TUNED_COLD_START_S)
        for kind in kinds
        for strategy, parameters in CANDIDATES.items()
        for parameter in (parameters[-1:] if options.quick else parameters)
    ]
    kept = Kept(BENCH.kept, state_of_the_code())
    tried = kept.all_of(one, tuning, options.processes, "tuning")
    chosen = {
        kind: {
            name: best([r for r in tried if (r["kind"], r["strategy"]) == (kind, name)])
            for name in CANDIDATES
        }
        for kind in kinds
    }
    cases = [
        Case(kind, name, chosen[kind].get(name, 0.0), day, cold_s)
        for kind in kinds
        for name in (*CANDIDATES, *UNTUNED)
        for cold_s in COLD_STARTS_S
        for day in DAYS
    ]
    runs = tried if options.quick else kept.all_of(one, cases, options.processes, "runs")
    return {"most": MOST, "tuning": tried, "chosen": chosen, "runs": runs}


def tables(numbers: Numbers) -> Blocks:
    """Requests within targets and instance-hours by kind of day, strategy and cold start."""
    runs: list[dict[str, Any]] = numbers["runs"]
    requests = sorted(run["requests"] for run in runs)
    tuned = "; ".join(
        f"{kind}: " + ", ".join(f"{name} {value:g}" for name, value in chosen.items())
        for kind, chosen in numbers["chosen"].items()
    )
    days = sorted({run["day"] for run in runs})
    text = (
        f"*Laboratory*: simulated, true output lengths. At most {numbers['most']} engines of "
        f"{PROFILE}; {requests[0]:,} to {requests[-1]:,} requests in {HOURS:g} hours. Targets: "
        f"TTFT {SLO.ttft_s:g} s and TPOT {SLO.tpot_s * 1000:g} ms. Requests within them and "
        f"instance-hours, means over the days {', '.join(map(str, days))}, each with a seed of its "
        f"own; ± is half the 95% t-interval. Tuned on day {TUNED_DAY} at a cold start of "
        f"{TUNED_COLD_START_S:g} s: {tuned}.\n"
    )
    cold_starts = sorted({run["cold_start_s"] for run in runs})
    rows = [
        [f"{kind}: `{name}`", *(_cell(runs, kind, name, cold_s) for cold_s in cold_starts)]
        for kind, name in dict.fromkeys((run["kind"], run["strategy"]) for run in runs)
    ]
    header = ("day: strategy", *(f"cold start {cold_s:g} s" for cold_s in cold_starts))
    return {"tables": "\n".join([made_by(numbers), text, markdown_table(header, rows)])}


def _cell(runs: Sequence[dict[str, Any]], kind: str, strategy: str, cold_start_s: float) -> str:
    wanted = (kind, strategy, cold_start_s)
    mine = [r for r in runs if (r["kind"], r["strategy"], r["cold_start_s"]) == wanted]

    within, hours = ([run[name] for run in mine] for name in ("within", "hours"))
    return f"{plus_minus([100.0 * each for each in within], 1)}% in {plus_minus(hours, 1)} h"
