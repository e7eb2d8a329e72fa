"""What does a tenant that sends ten times its share do to the others?

Two tenants share a simulated cluster, each with 40% of what it can serve. Then one sends ten times
as much, with and without names, by which the engines are shared (`foretell.placement.shares`).
"""

import argparse
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

from bench.placement.deployed import Kept, by_seed, config_of
from bench.placement.families import FAMILIES, Family
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from bench.stats import geometric_mean, percentile, ratio_interval
from foretell.policy import make_policy
from foretell.sim import simulate
from foretell.workload import Arrival

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="10 minutes",
    paths={"TRACES": "folder of the traces"},
    processes=2,
)
RATES_QPS = {"chat": 30.7, "code": 30.2}
"""Families of `bench.placement.families`, and 92% of their capacities by `placement.yardstick`, in
requests a second."""
PART, FLOOD, SECONDS, SEEDS = 0.4, 10, 20.0, 3
LATENCIES = ("ttft_mean_s", "ttft_p99_s", "e2e_mean_s")
RUNS = {
    "both at their shares": (1, True),
    "one at 10 times its share, without names": (FLOOD, False),
    "one at 10 times its share": (FLOOD, True),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One run of the simulator."""

    family: str
    run: str
    seed: int


def arrivals(family: Family, traces: Path, case: Case) -> list[Arrival]:
    """The requests of both tenants; those of the quiet one are the same in all runs of a seed."""
    times, named = RUNS[case.run]
    found: list[Arrival] = []
    for tenant, parts, seed in (("loud", times, case.seed), ("quiet", 1, case.seed + 100)):
        qps = PART * parts * RATES_QPS[family.name]
        name = tenant if named else ""
        for sent in family.arrivals(traces, qps, int(qps * SECONDS), seed):
            key = f"{tenant}-{sent.request_id}"
            found.append(replace(sent, request_id=key, tenant=name))
    return sorted(found, key=lambda arrival: arrival.t_s)


def run(case: Case, traces: Path) -> Numbers:
    """What both tenants get."""
    family = next(f for f in FAMILIES if f.name == case.family)
    sent = arrivals(family, traces, case)
    config = config_of(family.engines, sent, "tagger", case.seed)
    report = simulate(config, sent, [make_policy("slo")], Random(f"{case.seed} cluster"))
    quiet = [s for s in report.served if s.request_id.startswith("quiet")]
    loud = [s for s in report.served if s.request_id.startswith("loud")]
    ends_s = [s.arrival_s + s.e2e_s for s in loud]
    return {
        **asdict(case),
        "ttft_mean_s": sum(s.ttft_s for s in quiet) / len(quiet),
        "ttft_p99_s": percentile([s.ttft_s for s in quiet], 99),
        "e2e_mean_s": sum(s.e2e_s for s in quiet) / len(quiet),
        "loud_tokens_per_s": sum(s.output_tokens for s in loud) / max(ends_s),
    }


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=SEEDS, help="Number of seeds.")


def measure(options: argparse.Namespace) -> Numbers:
    """Simulate what has not been simulated yet."""
    cases = [
        Case(family, name, seed)
        for seed in range(1, options.seeds + 1)
        for family in RATES_QPS
        for name in RUNS
    ]
    kept = Kept(BENCH.kept)
    return {
        "rows": kept.all_of(partial(run, traces=options.traces), cases, options.processes, "runs")
    }


def tables(page: Numbers) -> Blocks:
    """The quiet tenant's latencies, and what the loud one got done."""
    seeds = len({row["seed"] for row in page["rows"]})
    lines = [_line(page, family, name) for family in RATES_QPS for name in RUNS]
    header = ["", "mean TTFT", "P99 TTFT", "mean e2e", "P99 TTFT, ratio", "loud tokens/s"]
    text = [
        made_by(page),
        f"Geometric means over {seeds} seeds of {SECONDS:g} s of arrivals; the ratio is to both "
        "at their shares, with a 95% interval (Student's t over the seeds). All figures but the "
        "last are of the tenant that stays at its share.\n",
        markdown_table(header, lines),
    ]
    return {"tables": "\n".join(text)}


def _line(page: Numbers, family: str, name: str) -> list[str]:
    def values(figure: str, run: str = name) -> list[float]:
        return by_seed(page["rows"], figure, family=family, run=run)

    seconds = [f"{geometric_mean(values(f)):.2f} s" for f in LATENCIES]
    usual = values("ttft_p99_s", next(iter(RUNS)))
    ratios = [a / b for a, b in zip(values("ttft_p99_s"), usual, strict=True)]
    mean, low, high = ratio_interval(ratios)
    tokens = f"{geometric_mean(values('loud_tokens_per_s')):,.0f}"
    return [f"{family}: {name}", *seconds, f"{mean:.2f} ({low:.2f} to {high:.2f})", tokens]
