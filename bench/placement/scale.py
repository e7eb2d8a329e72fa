"""What does it cost to ask only some of many predictors, in latency and saved computation?

The engines are those of the Block paper's cluster.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from random import Random
from statistics import fmean
from time import process_time
from typing import Any

from bench.placement.a30 import DESCRIPTION, Lengths, Load, cluster, figures, read_lengths
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from bench.runs import run_each
from foretell.placement import PlacementConfig
from foretell.policy import make_policy
from foretell.sim import simulate

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="10 minutes",
    paths={"LENGTHS.csv": "prompt and output lengths"},
    processes=1,
)
POLICY, NOBODY = "predicted_latency", "random"
CANDIDATES = (1, 2, 4, 8, 16, 0)
"""Predictors asked; 0: all."""
SETTINGS = ((1, 0.02, 0.0), (16, 0.1, 0.002))
"""Schedulers, seconds between snapshots, and seconds from a scheduler to a predictor."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run of the simulator."""

    policy: str
    candidates: int
    schedulers: int
    publish_interval_s: float
    network_delay_s: float
    seed: int


def cases(seeds: Sequence[int]) -> list[Case]:
    """All cases; those that take longest first."""
    choices = [(POLICY, k) for k in sorted(CANDIDATES, key=lambda k: (k > 0, -k))]
    return [
        Case(policy, k, *setting, seed)
        for policy, k in (*choices, (NOBODY, 0))
        for setting in SETTINGS
        for seed in seeds
    ]


def run(case: Case, instances: int, qps: float, requests: int, lengths: Lengths) -> dict[str, Any]:
    """The figures of one case, and the CPU time of a request in it; the load is alike for all."""
    config = cluster(
        instances,
        placement=PlacementConfig(candidates=case.candidates),
        publish_interval_s=case.publish_interval_s,
        network_delay_s=case.network_delay_s,
    )
    # Loading the kernel is no request's cost.
    simulate(cluster(2), Load(10.0, 20, 1, [(64, 8)]).arrivals(), [make_policy(POLICY)], Random(1))
    arrivals = Load(qps, requests, case.seed, lengths).arrivals()
    policies = [make_policy(case.policy) for _ in range(case.schedulers)]
    began_s = process_time()
    report = simulate(config, arrivals, policies, Random(case.seed))
    cpu_s = (process_time() - began_s) / requests
    return {**asdict(case), **figures(report), "cpu_s": cpu_s}


def tables(numbers: Numbers) -> Blocks:
    """A table for each of `SETTINGS`."""
    runs: list[dict[str, Any]] = numbers["runs"]
    seeds = sorted({run["seed"] for run in runs})
    lines = [
        made_by(numbers),
        f"{numbers['instances']} {DESCRIPTION}; "
        f"{numbers['requests']:,} requests with real lengths, Poisson arrivals at "
        f"{numbers['qps']:g} a second, true lengths; means over the seeds "
        f"{', '.join(map(str, seeds))}. Seconds; in "
        "brackets, how much more than where all are asked. CPU time is that of the whole "
        "simulation by its requests: their engines' steps cost as much in every row.\n",
    ]
    for schedulers, publish_s, network_s in SETTINGS:
        chosen = [run for run in runs if run["schedulers"] == schedulers]
        knows = f"a snapshot at most every {publish_s:g} s" if publish_s else "every change known"
        away = f", {network_s * 1000:g} ms to a predictor" if network_s else ""
        lines.append(f"**{schedulers} scheduler{'s' * (schedulers > 1)}, {knows}{away}**\n")
        header = ("asked", "TTFT mean", "TTFT P99", "e2e mean", "e2e P99", "CPU time")
        lines.append(markdown_table(header, _rows(chosen)))
    return {"tables": "\n".join(lines)}


def _rows(runs: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    def mean(policy: str, candidates: int, name: str) -> float:
        mine = [r for r in runs if (r["policy"], r["candidates"]) == (policy, candidates)]
        return fmean(run[name] for run in mine)

    rows = []
    kinds = [(NOBODY, 0), *((POLICY, k) for k in CANDIDATES)]
    for policy, k in kinds:
        cells = ["nobody: random" if policy == NOBODY else str(k or "all")]
        for name in ("ttft_mean_s", "ttft_p99_s", "e2e_mean_s", "e2e_p99_s"):
            value, best = mean(policy, k, name), mean(POLICY, 0, name)
            loss = f" ({value / best - 1:+.1%})" if (policy, k) != (POLICY, 0) else ""
            cells.append(f"{value:.3f}{loss}")
        cells.append(f"{mean(policy, k, 'cpu_s') * 1e3:.3f} ms")
        rows.append(tuple(cells))
    return rows


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--instances", type=int, default=200)
    parser.add_argument("--qps", type=float, default=540.0)
    parser.add_argument("--requests", type=int, default=12_000, help="Requests of a run.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[2])


def measure(options: argparse.Namespace) -> Numbers:
    """Run every case."""
    load = {name: getattr(options, name) for name in ("instances", "qps", "requests")}
    one = partial(run, **load, lengths=read_lengths(options.lengths))
    return {**load, "runs": run_each(one, cases(options.seeds), options.processes)}
