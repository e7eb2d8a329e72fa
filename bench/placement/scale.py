"""What does it cost to ask only some of many predictors, in latency and saved computation?

    python -m bench.placement.scale LENGTHS.csv [--instances N] [--requests N] [--seeds ...]

LENGTHS.csv has the columns `num_prefill_tokens` and `num_decode_tokens`, a request per line. The
engines are those of `bench.placement.policies`. Writes bench/placement/results/scale.json and .md,
and what docs/policies.md says of it.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import fmean
from time import process_time
from typing import Any

from bench.placement.policies import ENGINE, PROFILE, RESULTS, figures, read_lengths
from bench.stats import markdown_table, write_into
from foretell.config import load_profile
from foretell.latency.tables import profile_step_time
from foretell.placement import PlacementConfig
from foretell.policy import make_policy
from foretell.sim import ClusterConfig, InstanceConfig, simulate
from foretell.workload import EmpiricalLengths, poisson, stream
from tools.harness.machine import describe_machine, describe_run, machine_line

PAGE = RESULTS.parent.parent / "docs" / "policies.md"
POLICY, NOBODY = "predicted_latency", "random"
CANDIDATES = (1, 2, 4, 8, 16, 0)
"""Predictors asked; 0: all."""
SETTINGS = ((1, 0.0, 0.0), (16, 0.1, 0.002))
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


@dataclass(frozen=True, slots=True)
class Load:
    """What every case gets."""

    instances: int
    qps: float
    requests: int


def cases(seeds: Sequence[int]) -> list[Case]:
    """All of them; those that take longest first."""
    choices = [(POLICY, k) for k in sorted(CANDIDATES, key=lambda k: (k > 0, -k))]
    return [
        Case(policy, k, *setting, seed)
        for policy, k in (*choices, (NOBODY, 0))
        for setting in SETTINGS
        for seed in seeds
    ]


def run(case: Case, load: Load, pairs: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """The figures of one case, and the CPU time of a request in it; the load is alike for all."""
    draws = Random(case.seed)
    arrivals = stream(load.requests, poisson(load.qps, draws), EmpiricalLengths(pairs), draws)
    instance = InstanceConfig(ENGINE, profile_step_time(load_profile(PROFILE)))
    config = ClusterConfig(
        (instance,) * load.instances,
        placement=PlacementConfig(candidates=case.candidates),
        publish_interval_s=case.publish_interval_s,
        network_delay_s=case.network_delay_s,
    )
    policies = [make_policy(case.policy) for _ in range(case.schedulers)]
    began_s = process_time()
    report = simulate(config, arrivals, policies, Random(case.seed))
    cpu_s = (process_time() - began_s) / load.requests
    return {**asdict(case), **figures(report), "cpu_s": cpu_s}


def run_all(
    todo: Sequence[Case], load: Load, pairs: Sequence[tuple[int, int]], processes: int
) -> list[dict[str, Any]]:
    """Every case, with a line on stderr as each ends."""
    found = []
    with ProcessPoolExecutor(processes) as pool:
        list(pool.map(warm, range(processes)))
        futures = [pool.submit(run, case, load, pairs) for case in todo]
        for number, (case, future) in enumerate(zip(todo, futures, strict=True), 1):
            found.append(future.result())
            print(f"{number}/{len(todo)} {case} {found[-1]['cpu_s']:.6f}", file=sys.stderr)
    return found


def warm(process: int) -> None:
    """Load the kernel, which is no request's cost."""
    run(Case(POLICY, 0, 1, 0.0, 0.0, process), Load(2, 10.0, 20), [(64, 8)])


def markdown(page: dict[str, Any]) -> str:
    """Of bench/placement/results/scale.md, and of the page on policies."""
    runs: list[dict[str, Any]] = page["runs"]
    seeds = sorted({run["seed"] for run in runs})
    lines = [
        f"Made by `{page['command']}` on {page['date']}; {machine_line(page['machine'])}.\n",
        f"{page['instances']} engines of {PROFILE}, {ENGINE.max_num_seqs} seats, chunks of "
        f"{ENGINE.max_num_scheduled_tokens} tokens, {ENGINE.total_blocks:,} blocks; "
        f"{page['requests']:,} requests with real lengths, Poisson arrivals at {page['qps']:g} a "
        f"second, true lengths; means over the seeds {', '.join(map(str, seeds))}. Seconds; in "
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
    return "\n".join(lines)


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


def main() -> None:
    """Simulate and write."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lengths", type=Path, help="CSV of prompt and output lengths")
    parser.add_argument("--instances", type=int, default=200)
    parser.add_argument("--qps", type=float, default=540.0)
    parser.add_argument("--requests", type=int, default=12_000, help="per run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[2])
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    load = Load(options.instances, options.qps, options.requests)
    facts: dict[str, Any] = {
        **describe_run("bench.placement.scale"),
        "machine": describe_machine("foretell", "numba", "numpy"),
        **asdict(load),
    }
    facts["command"] = facts["command"].replace(str(options.lengths), "LENGTHS.csv")
    pairs = read_lengths(options.lengths)
    page = {**facts, "runs": run_all(cases(options.seeds), load, pairs, options.processes)}
    (RESULTS / "placement_scale.json").write_text(json.dumps(page, indent=1) + "\n")
    text = markdown(page)
    (RESULTS / "placement_scale.md").write_text(
        f"# Asking some of many predictors, in the simulator\n\n{text}"
    )
    write_into(PAGE, "placement_scale", text)
    print(text)


if __name__ == "__main__":
    main()
