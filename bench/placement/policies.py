"""What do placement policies make of the same requests on the same cluster?

The cluster is that of the Block paper. Variants of `externality` that leave one of its parts out
are run with true lengths at the highest rate only.
"""

import argparse
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from math import exp
from random import Random
from statistics import fmean
from typing import Any

from bench.placement.a30 import (
    DESCRIPTION,
    INSTANCES,
    Lengths,
    Load,
    cluster,
    figures,
    read_lengths,
)
from bench.placement.variants import ABLATIONS, make
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from bench.runs import run_each
from foretell.model import LengthEstimate
from foretell.sim import simulate, true_length
from foretell.workload import Arrival

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="10 minutes",
    paths={"LENGTHS.csv": "prompt and output lengths"},
    processes=2,
)
POLICIES = ("predicted_latency", "externality")
NOISE_SIGMA = 0.3
"""Standard deviation of the logarithm of an estimated length around the true one."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run of the simulator."""

    policy: str
    noise_sigma: float
    qps: float
    seed: int


def noisy(seed: int, sigma: float) -> Callable[[Arrival], LengthEstimate]:
    """Estimates that are off by a log-normal factor, the same for every policy."""

    def estimate(arrival: Arrival) -> LengthEstimate:
        factor = exp(Random(f"{seed}/{arrival.request_id}").gauss(0.0, sigma))
        return LengthEstimate(max(1.0, arrival.output_tokens * factor), source="model")

    return estimate


def run(case: Case, lengths: Lengths, requests: int) -> dict[str, Any]:
    """The figures of one case; its requests depend on rate and seed alone."""
    sigma = case.noise_sigma
    config = cluster(estimate=noisy(case.seed, sigma) if sigma else true_length)
    arrivals = Load(case.qps, requests, case.seed, lengths).arrivals()
    report = simulate(config, arrivals, [make(case.policy)], Random(case.seed))
    return {**asdict(case), **figures(report)}


def tables(numbers: Numbers) -> Blocks:
    """A table for each kind of estimate and each rate."""
    runs: list[dict[str, Any]] = numbers["runs"]
    seeds = sorted({run["seed"] for run in runs})
    lines = [
        made_by(numbers),
        f"{INSTANCES} {DESCRIPTION}; "
        f"{numbers['requests']:,} requests with real lengths, Poisson arrivals. Each figure is the "
        f"mean over the seeds {', '.join(map(str, seeds))}, with the seeds' own in brackets; "
        "seconds, and preemptions per 1,000 requests. Every policy gets the same requests.\n",
    ]
    for sigma in sorted({run["noise_sigma"] for run in runs}):
        known = f"Estimates with {sigma:.0%} log-normal noise" if sigma else "True lengths"
        lines.append(f"**{known}**\n")
        for qps in sorted({run["qps"] for run in runs}):
            chosen = [r for r in runs if (r["noise_sigma"], r["qps"]) == (sigma, qps)]
            policies = dict.fromkeys(run["policy"] for run in chosen)
            if policies:
                rows = [_row(p, chosen, numbers["requests"]) for p in policies]
                header = ("TTFT mean", "TTFT P99", "e2e mean", "e2e P99", "preemptions")
                lines.append(markdown_table((f"{qps:g} requests/s", *header), rows))
    return {"tables": "\n".join(lines)}


def _row(policy: str, runs: Iterable[dict[str, Any]], requests: int) -> tuple[str, ...]:
    mine = [run for run in runs if run["policy"] == policy]
    cells = [policy]
    for name in ("ttft_mean_s", "ttft_p99_s", "e2e_mean_s", "e2e_p99_s", "preemptions"):
        scale, digits = (1000 / requests, 0) if name == "preemptions" else (1.0, 2)
        values = [run[name] * scale for run in mine]
        each = ", ".join(f"{value:.{digits}f}" for value in values)
        cells.append(f"{fmean(values):.{digits}f} ({each})")
    return tuple(cells)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=2000, help="Requests of a run.")
    parser.add_argument("--qps", type=float, nargs="+", default=[34.0, 36.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[2, 3])


def measure(options: argparse.Namespace) -> Numbers:
    """Run every policy at every rate, with every seed."""
    cases = [
        Case(policy, sigma, qps, seed)
        for sigma in (0.0, NOISE_SIGMA)
        for qps in options.qps
        for policy in (*POLICIES, *(() if sigma or qps < max(options.qps) else ABLATIONS))
        for seed in options.seeds
    ]
    one = partial(run, lengths=read_lengths(options.lengths), requests=options.requests)
    return {"requests": options.requests, "runs": run_each(one, cases, options.processes)}


if __name__ == "__main__":
    BENCH.main(measure, tables, arguments)
