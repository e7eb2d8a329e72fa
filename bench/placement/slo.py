"""How many requests of two classes meet their targets, under which placement policy?

    python -m bench.placement.slo LENGTHS.csv [--requests N] [--qps ...] [--seeds ...]

LENGTHS.csv and the cluster are those of `bench.placement.policies`: 12 A30 with Llama-2-7B. A part
of the requests, drawn at random, is interactive, the others are relaxed; lengths are estimated with
noise whose spread the predictors know. Writes bench/placement/results/slo.json and .md, and what
docs/policies.md says of it.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from bench.placement.policies import ENGINE, INSTANCES, PAGE, PROFILE, RESULTS, read_lengths
from bench.stats import interval, markdown_table, write_into
from foretell.config import load_profile
from foretell.latency.tables import profile_step_time
from foretell.model import Slo
from foretell.policy import make_policy
from foretell.sim import ClusterConfig, InstanceConfig, Report, simulate
from foretell.workload import Arrival, EmpiricalLengths, noisy_length, poisson, stream
from tools.harness.machine import describe_machine, describe_run, machine_line

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


def run(case: Case, pairs: Sequence[tuple[int, int]], requests: int) -> dict[str, Any]:
    """The figures of one case; arrivals, classes and estimates depend on rate and seed alone."""
    draws = Random(case.seed)
    plain = stream(requests, poisson(case.qps, draws), EmpiricalLengths(pairs), draws)
    arrivals = classed(plain, Random(f"{case.seed} classes"))
    policy, _, rejecting = case.contender.partition(", ")
    instance = InstanceConfig(ENGINE, profile_step_time(load_profile(PROFILE)))
    config = ClusterConfig(
        (instance,) * INSTANCES,
        estimate=noisy_length(NOISE_SIGMA, Random(f"{case.seed} estimates")),
        reject_late=bool(rejecting),
    )
    report = simulate(config, arrivals, [make_policy(policy)], Random(case.seed))
    return {**asdict(case), **figures(report, arrivals)}


def classed(arrivals: Sequence[Arrival], draws: Random) -> list[Arrival]:
    """Each with the targets of its class."""
    return [
        replace(a, slo=INTERACTIVE if draws.random() < INTERACTIVE_RATIO else RELAXED)
        for a in arrivals
    ]


def figures(report: Report, arrivals: Sequence[Arrival]) -> dict[str, float]:
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


def markdown(page: dict[str, Any]) -> str:
    """Of bench/placement/results/slo.md, and of the page on policies."""
    runs: list[dict[str, Any]] = page["runs"]
    seeds = sorted({run["seed"] for run in runs})
    lines = [
        f"Made by `{page['command']}` on {page['date']}; {machine_line(page['machine'])}.\n",
        f"{INSTANCES} engines of {PROFILE}; {page['requests']:,} requests with real lengths, "
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
    return "\n".join(lines)


def _targets(slo: Slo) -> str:
    return f"TTFT {slo.ttft_s:g} s, TPOT {slo.tpot_s * 1000:g} ms"


def _row(contender: str, runs: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    mine = [run for run in runs if run["contender"] == contender]
    cells = [contender]
    for name in COLUMNS.values():
        mean, half_width = interval([run[name] for run in mine])
        cells.append(f"{mean:.3f} ± {half_width:.3f}")
    if contender == BASELINE:
        return (*cells, "")
    base = [run for run in runs if run["contender"] == BASELINE]
    more = [a["within_slo"] - b["within_slo"] for a, b in zip(mine, base, strict=True)]
    mean, half_width = interval(more)
    return (*cells, f"{mean:+.3f} ± {half_width:.3f}")


def main() -> None:
    """Simulate and write."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lengths", type=Path, help="CSV of prompt and output lengths")
    parser.add_argument("--requests", type=int, default=1400, help="per run")
    parser.add_argument("--qps", type=float, nargs="+", default=[30.0, 34.0, 38.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    facts: dict[str, Any] = {
        **describe_run("bench.placement.slo"),
        "machine": describe_machine("foretell", "numba", "numpy"),
        "requests": options.requests,
    }
    facts["command"] = facts["command"].replace(str(options.lengths), "LENGTHS.csv")
    cases = [
        Case(contender, qps, seed)
        for qps in options.qps
        for contender in CONTENDERS
        for seed in options.seeds
    ]
    pairs = read_lengths(options.lengths)
    runs = []
    with ProcessPoolExecutor(options.processes) as pool:
        futures = [pool.submit(run, case, pairs, options.requests) for case in cases]
        for number, (case, future) in enumerate(zip(cases, futures, strict=True), 1):
            runs.append(future.result())
            print(f"{number}/{len(cases)} {case}", file=sys.stderr)
    page = {**facts, "runs": runs}
    (RESULTS / "placement_slo.json").write_text(json.dumps(page, indent=1) + "\n")
    text = markdown(page)
    (RESULTS / "placement_slo.md").write_text(f"# Requests within their targets\n\n{text}")
    write_into(PAGE, "placement_slo", text)
    print(text)


if __name__ == "__main__":
    main()
