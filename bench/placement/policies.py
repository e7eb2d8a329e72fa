"""What do placement policies make of the same requests on the same cluster?

    python -m bench.placement.policies LENGTHS.csv [--requests N] [--qps ...] [--seeds ...]

LENGTHS.csv has the columns `num_prefill_tokens` and `num_decode_tokens`, a request per line. The
cluster is that of the Block paper: 12 A30 with Llama-2-7B, 48 seats, chunks of 512 tokens, 1,056
blocks. Variants of `externality` are run with true lengths at the highest rate only. Writes
bench/placement/results/policies.json and .md, and what docs/policies.md says of it.
"""

import argparse
import csv
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from math import exp
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from bench.placement.variants import ABLATIONS, POLICIES, make
from bench.stats import markdown_table, write_into
from foretell.config import load_profile
from foretell.latency.tables import profile_step_time
from foretell.model import EngineConfig, LengthEstimate
from foretell.sim import ClusterConfig, InstanceConfig, Report, simulate, true_length
from foretell.workload import Arrival, EmpiricalLengths, poisson, stream
from tools.harness.machine import describe_machine, describe_run, machine_line

RESULTS = Path(__file__).resolve().parent / "results"
PAGE = RESULTS.parent.parent / "docs" / "policies.md"
PROFILE, INSTANCES = "A30/Llama-2-7b-hf", 12
ENGINE = EngineConfig(
    model_name=PROFILE,
    block_size_tokens=16,
    total_blocks=1056,
    max_num_seqs=48,
    max_num_scheduled_tokens=512,
    max_model_len=4096,
)
NOISE_SIGMA = 0.3
"""Standard deviation of the logarithm of an estimated length around the true one."""
FIGURES = ("ttft_mean_s", "ttft_p99_s", "e2e_mean_s", "e2e_p99_s", "preemptions")


@dataclass(frozen=True, slots=True)
class Case:
    """One run of the simulator."""

    policy: str
    noise_sigma: float
    qps: float
    seed: int


def read_lengths(path: Path) -> list[tuple[int, int]]:
    """(prompt, output) tokens of the requests that the engines can serve."""
    with path.open(newline="") as file:
        pairs = [
            (int(row["num_prefill_tokens"]), int(row["num_decode_tokens"]))
            for row in csv.DictReader(file)
        ]
    return [(p, o) for p, o in pairs if p > 0 and o > 0 and p + o <= ENGINE.max_model_len]


def noisy(seed: int, sigma: float) -> Callable[[Arrival], LengthEstimate]:
    """Estimates that are off by a log-normal factor, the same for every policy."""

    def estimate(arrival: Arrival) -> LengthEstimate:
        factor = exp(Random(f"{seed}/{arrival.request_id}").gauss(0.0, sigma))
        return LengthEstimate(max(1.0, arrival.output_tokens * factor), source="model")

    return estimate


def run(case: Case, pairs: Sequence[tuple[int, int]], requests: int) -> dict[str, Any]:
    """The figures of one case; arrivals and lengths depend on its rate and seed alone."""
    draws = Random(case.seed)
    arrivals = stream(requests, poisson(case.qps, draws), EmpiricalLengths(pairs), draws)
    instance = InstanceConfig(ENGINE, profile_step_time(load_profile(PROFILE)))
    config = ClusterConfig(
        (instance,) * INSTANCES,
        estimate=noisy(case.seed, case.noise_sigma) if case.noise_sigma else true_length,
    )
    report = simulate(config, arrivals, [make(case.policy)], Random(case.seed))
    return {**asdict(case), **figures(report)}


def figures(report: Report) -> dict[str, float]:
    return {
        "ttft_mean_s": report.mean(lambda r: r.ttft_s),
        "ttft_p99_s": report.quantile(0.99, lambda r: r.ttft_s),
        "e2e_mean_s": report.mean(lambda r: r.e2e_s),
        "e2e_p99_s": report.quantile(0.99, lambda r: r.e2e_s),
        "preemptions": report.preemptions,
    }


def run_all(
    cases: Sequence[Case], pairs: Sequence[tuple[int, int]], requests: int, processes: int
) -> list[dict[str, Any]]:
    """Every case, with a line on stderr as each ends."""
    found = []
    with ProcessPoolExecutor(processes) as pool:
        futures = [pool.submit(run, case, pairs, requests) for case in cases]
        for number, (case, future) in enumerate(zip(cases, futures, strict=True), 1):
            found.append(future.result())
            print(f"{number}/{len(cases)} {case}", file=sys.stderr)
    return found


def markdown(page: dict[str, Any]) -> str:
    """Of bench/placement/results/policies.md, and of the page on policies."""
    runs: list[dict[str, Any]] = page["runs"]
    seeds = sorted({run["seed"] for run in runs})
    lines = [
        f"Made by `{page['command']}` on {page['date']}; {machine_line(page['machine'])}.\n",
        f"{INSTANCES} engines of {PROFILE}, {ENGINE.max_num_seqs} seats, chunks of "
        f"{ENGINE.max_num_scheduled_tokens} tokens, {ENGINE.total_blocks:,} blocks; "
        f"{page['requests']:,} requests with real lengths, Poisson arrivals. Each figure is the "
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
                rows = [_row(p, chosen, page["requests"]) for p in policies]
                header = ("TTFT mean", "TTFT P99", "e2e mean", "e2e P99", "preemptions")
                lines.append(markdown_table((f"{qps:g} requests/s", *header), rows))
    return "\n".join(lines)


def _row(policy: str, runs: Iterable[dict[str, Any]], requests: int) -> tuple[str, ...]:
    mine = [run for run in runs if run["policy"] == policy]
    cells = [policy]
    for name in FIGURES:
        scale, digits = (1000 / requests, 0) if name == "preemptions" else (1.0, 2)
        values = [run[name] * scale for run in mine]
        each = ", ".join(f"{value:.{digits}f}" for value in values)
        cells.append(f"{fmean(values):.{digits}f} ({each})")
    return tuple(cells)


def main() -> None:
    """Simulate and write."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lengths", type=Path, help="CSV of prompt and output lengths")
    parser.add_argument("--requests", type=int, default=2000, help="per run")
    parser.add_argument("--qps", type=float, nargs="+", default=[34.0, 36.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    facts: dict[str, Any] = {
        **describe_run("bench.placement.policies"),
        "machine": describe_machine("foretell", "numba", "numpy"),
        "requests": options.requests,
    }
    facts["command"] = facts["command"].replace(str(options.lengths), "LENGTHS.csv")
    cases = [
        Case(policy, sigma, qps, seed)
        for sigma in (0.0, NOISE_SIGMA)
        for qps in options.qps
        for policy in (*POLICIES, *(() if sigma or qps < max(options.qps) else ABLATIONS))
        for seed in options.seeds
    ]
    pairs = read_lengths(options.lengths)
    page = {**facts, "runs": run_all(cases, pairs, options.requests, options.processes)}
    (RESULTS / "placement_policies.json").write_text(json.dumps(page, indent=1) + "\n")
    text = markdown(page)
    (RESULTS / "placement_policies.md").write_text(
        f"# Placement policies in the simulator\n\n{text}"
    )
    write_into(PAGE, "placement_policies", text)
    print(text)


if __name__ == "__main__":
    main()
