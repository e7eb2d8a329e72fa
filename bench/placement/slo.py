"""How many requests of two classes meet their targets, under which placement policy?

The cluster is that of the Block paper. A part of the requests, drawn at random, is interactive, the
others are relaxed; lengths are estimated with noise whose spread the predictors know.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from random import Random
from typing import Any

from bench.placement.a30 import INSTANCES, PROFILE, Lengths, Load, cluster, read_lengths
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from bench.runs import run_each
from bench.stats import interval
from foretell.model import Slo
from foretell.policy import make_policy
from foretell.sim import Report, simulate
from foretell.workload import Arrival, noisy_length

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="10 minutes",
    paths={"LENGTHS.csv": "prompt and output lengths"},
    processes=2,
)
INTERACTIVE, RELAXED = Slo(0.5, 0.08), Slo(5.0, 0.15)
INTERACTIVE_RATIO = 0.3
NOISE_SIGMA = 0.3
"""Standard deviation of the logarithm of a true length around the estimated one."""
CONTENDERS = ("llumnix_minus", "predicted_latency", "externality", "slo", "slo, rejecting")
BASELINE = "externality"
COLUMNS = {
    "all": "within_slo",
    "interactive": "within_slo_interactive",
    "relaxed": "within_slo_relaxed",
    "rejected": "rejected_ratio",
    "TTFT mean, s": "ttft_mean_s",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One run of the simulator."""

    contender: str
    qps: float
    seed: int


def run(case: Case, lengths: Lengths, requests: int) -> dict[str, Any]:
    """The figures of one case; arrivals, classes and estimates depend on rate and seed alone."""
    plain = Load(case.qps, requests, case.seed, lengths).arrivals()
    arrivals = classed(plain, Random(f"{case.seed} classes"))
    policy, _, rejecting = case.contender.partition(", ")
    config = cluster(
        estimate=noisy_length(NOISE_SIGMA, Random(f"{case.seed} estimates")),
        reject_late=bool(rejecting),
    )
    report = simulate(config, arrivals, [make_policy(policy)], Random(case.seed))
    return {**asdict(case), **figures(report, arrivals)}


def classed(arrivals: Sequence[Arrival], draws: Random) -> list[Arrival]:
    """Each request with the targets of its class."""
    return [
        replace(a, slo=INTERACTIVE if draws.random() < INTERACTIVE_RATIO else RELAXED)
        for a in arrivals
    ]


def figures(report: Report, arrivals: Sequence[Arrival]) -> dict[str, float]:
    """Ratios of requests, their rate (1/s), and the mean TTFT."""

    def within(slo: Slo) -> float:
        met = sum(r.within_slo for r in report.served if r.slo == slo)
        return met / sum(a.slo == slo for a in arrivals)

    return {
        "within_slo": report.within_slo,
        "within_slo_interactive": within(INTERACTIVE),
        "within_slo_relaxed": within(RELAXED),
        "rejected_ratio": len(report.rejected) / len(arrivals),
        "goodput_rps": report.goodput_rps,
        "ttft_mean_s": report.mean(lambda r: r.ttft_s),
    }


def tables(numbers: Numbers) -> Blocks:
    """A table for each rate."""
    runs: list[dict[str, Any]] = numbers["runs"]
    seeds = sorted({run["seed"] for run in runs})
    lines = [
        made_by(numbers),
        f"{INSTANCES} engines of {PROFILE}; {numbers['requests']:,} requests with real lengths, "
        f"Poisson arrivals, lengths estimated with {NOISE_SIGMA:.0%} log-normal noise. "
        f"{INTERACTIVE_RATIO:.0%} are interactive ({_targets(INTERACTIVE)}), the others relaxed "
        f"({_targets(RELAXED)}). The first three columns are the ratios of requests within their "
        "targets; who was rejected was not. TTFT is that of the served. The last column is by how "
        f"much more of all are within their targets than with `{BASELINE}`, seed by seed. Means "
        f"over the seeds {', '.join(map(str, seeds))} with half the width of the 95% t-interval. "
        "Every contender gets the same requests.\n",
    ]
    for qps in sorted({run["qps"] for run in runs}):
        chosen = [run for run in runs if run["qps"] == qps]
        rows = [_row(name, chosen) for name in dict.fromkeys(run["contender"] for run in chosen)]
        header = (f"{qps:g} requests/s", *COLUMNS, f"all, less {BASELINE}")
        lines.append(markdown_table(header, rows))
    return {"tables": "\n".join(lines)}


def _targets(slo: Slo) -> str:
    return f"TTFT {slo.ttft_s:g} s, TPOT {slo.tpot_s * 1000:g} ms"


def _row(contender: str, runs: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    mine, base = (
        [run for run in runs if run["contender"] == name] for name in (contender, BASELINE)
    )
    cells = [contender]
    for name in COLUMNS.values():
        mean, half_width = interval([run[name] for run in mine])
        cells.append(f"{mean:.3f} ± {half_width:.3f}")
    if contender == BASELINE:
        return (*cells, "")
    more = [a["within_slo"] - b["within_slo"] for a, b in zip(mine, base, strict=True)]
    mean, half_width = interval(more)
    return (*cells, f"{mean:+.3f} ± {half_width:.3f}")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=1400, help="Requests of a run.")
    parser.add_argument("--qps", type=float, nargs="+", default=[30.0, 34.0, 38.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])


def measure(options: argparse.Namespace) -> Numbers:
    """Run every contender at every rate, with every seed."""
    cases = [
        Case(contender, qps, seed)
        for qps in options.qps
        for contender in CONTENDERS
        for seed in options.seeds
    ]
    one = partial(run, lengths=read_lengths(options.lengths), requests=options.requests)
    return {"requests": options.requests, "runs": run_each(one, cases, options.processes)}
