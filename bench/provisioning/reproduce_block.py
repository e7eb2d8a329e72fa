"""Does provisioning by predicted latency come out as in the Block paper's Figure 8?

A cluster of six instances gets more than it can serve; up to four are added, one whenever an actual
(`relief`) or a predicted (`preempt`) e2e latency reaches 70 s.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from random import Random
from statistics import fmean, pvariance
from typing import Any

from bench.provisioning.cluster import ENGINE, PROFILE, engines
from bench.provisioning.traffic import Lengths, read_lengths
from bench.report import Benchmark, Blocks, Numbers, made_by
from bench.runs import Kept, state_of_the_code
from foretell.policy import make_policy
from foretell.provision import ProvisionConfig, Strategy
from foretell.provision.strategies import make_strategy
from foretell.sim import ClusterConfig, Provisioning, Report, simulate
from foretell.tools.intervals import interval
from foretell.tools.markdown import markdown_table
from foretell.workload import EmpiricalLengths, poisson, stream

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="10 minutes",
    paths={"TRACES": "folder with the lengths of ShareGPT's requests"},
    processes=1,
)
QPS, FIRST, MOST, THRESHOLD_S = 24.0, 6, 10, 70.0
STRATEGIES = ("static", "relief", "preempt")
SEEDS, REQUESTS, COLD_START_S = (1, 2, 3), 6000, 20.0
SAMPLES = 100
COLUMNS = ("instance-hours", "free blocks, mean", "variance")
PAPER = {"relief": ("89.2", "627"), "preempt": ("71.2", "129")}
"""P99 of e2e latency in seconds, and requests over 70 s; the text names the first of both."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run of the simulator."""

    strategy: str
    cold_start_s: float
    seed: int
    requests: int = REQUESTS


def run(case: Case, lengths: Lengths) -> dict[str, Any]:
    """The figures of one case; requests depend only on the seed."""
    draws = Random(case.seed)
    arrivals = stream(case.requests, poisson(QPS, draws), EmpiricalLengths(lengths), draws)
    provisioning = Provisioning(
        partial(strategy_of, case.strategy),
        ProvisionConfig(minimum=FIRST, maximum=MOST, cold_start_s=case.cold_start_s),
        initial=MOST if case.strategy == "static" else FIRST,
        cold_start_s=case.cold_start_s,
        every_s=1.0,
    )
    config = ClusterConfig(
        engines(MOST),
        provisioning=provisioning,
        foretell_every=0,
        sample_every_s=case.requests / QPS / SAMPLES,
    )
    report = simulate(config, arrivals, [make_policy("predicted_latency")], Random(case.seed))
    return {**asdict(case), **figures(report)}


def strategy_of(name: str) -> Strategy:
    """The strategy with the paper's threshold."""
    return make_strategy(name, **({} if name == "static" else {"threshold_s": THRESHOLD_S}))


def figures(report: Report) -> dict[str, float]:
    """Seconds, counts, blocks; the variance of free blocks is over instances, averaged over time.

    `instances` is the largest number that was requested, warming ones included.
    """
    return {
        "e2e_mean_s": report.mean(lambda r: r.e2e_s),
        "e2e_p99_s": report.quantile(0.99, lambda r: r.e2e_s),
        "over": sum(r.e2e_s > THRESHOLD_S for r in report.served),
        "instances": max(size.instances for size in report.sizes),
        "instance_hours": report.instance_s / 3600.0,
        "free_mean": fmean(fmean(free) for _, free in report.samples),
        "free_variance": fmean(pvariance(free) for _, free in report.samples),
    }


def measure(options: argparse.Namespace) -> Numbers:
    """Run every strategy."""
    seeds, requests = (SEEDS[:2], 600) if options.quick else (SEEDS, REQUESTS)
    cases = [Case(name, COLD_START_S, seed, requests) for name in STRATEGIES for seed in seeds]
    path = options.traces / "sharegpt_10k_llama2_lengths.csv"
    one = partial(run, lengths=read_lengths(path, ENGINE.max_model_len))
    kept = Kept(BENCH.kept, state_of_the_code())
    return {"runs": kept.all_of(one, cases, options.processes, "runs")}


def tables(numbers: Numbers) -> Blocks:
    """A row for each strategy."""
    runs: list[dict[str, Any]] = numbers["runs"]
    seeds = sorted({run["seed"] for run in runs})
    lines = [
        made_by(numbers),
        f"Laboratory: simulated, true output lengths. {MOST} engines of {PROFILE} at most, "
        f"{runs[0]['requests']:,} requests with ShareGPT's lengths, {QPS:g} requests/s, Poisson. "
        f"Means over the seeds {', '.join(map(str, seeds))} with half the width of the 95% "
        "t-interval. Free blocks are those of the instances that are there, "
        "until the last request has ended.\n",
    ]
    header = ("", "P99, s", "paper", "over 70 s", "paper", "instances", *COLUMNS)
    keys = dict.fromkeys((run["strategy"], run["cold_start_s"]) for run in runs)
    lines.append(markdown_table(header, [_row(*key, runs) for key in keys]))
    return {"tables": "\n".join(lines)}


def _row(strategy: str, cold_start_s: float, runs: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    mine = [r for r in runs if (r["strategy"], r["cold_start_s"]) == (strategy, cold_start_s)]
    paper = PAPER.get(strategy, ("", ""))

    def cell(name: str, digits: int = 1) -> str:
        mean, half = interval([run[name] for run in mine])
        return f"{mean:,.{digits}f} ± {half:,.{digits}f}"

    title = "static, 10" if strategy == "static" else f"{strategy}, cold start {cold_start_s:g} s"
    return (
        title,
        cell("e2e_p99_s"),
        paper[0],
        cell("over", 0),
        paper[1],
        cell("instances"),
        cell("instance_hours", 2),
        cell("free_mean", 0),
        cell("free_variance", 0),
    )
