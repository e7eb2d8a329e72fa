"""What is it worth that predictors know which prefixes their engines have cached?

One workload is Mooncake's trace with prefix hashes (arXiv 2407.00079). The other is made up:
conversations whose prompts repeat what was said before (`foretell.workload.sessions`).
`predicted_latency` and `externality` run with and without the index of prefixes
(`foretell.engine.prefixes`), beside policies that ask nobody and beside what gateways do with
prefixes (`bench.placement.prefix_baselines`).
"""

import argparse
import gzip
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from random import Random
from typing import Any

from bench.placement import a30
from bench.placement.prefix_baselines import LongestMatch, PrefixHash
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from bench.runs import run_each
from foretell.config import load_profile
from foretell.latency.tables import profile_step_time
from foretell.model import EngineConfig
from foretell.policy import Policy, make_policy
from foretell.sim import ClusterConfig, InstanceConfig, Report, simulate
from foretell.workload import Arrival, Conversations, arrivals_of, conversations, parse_mooncake
from foretell.workload.stream import PREFIX_BLOCK_TOKENS

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="20 minutes",
    paths={"MOONCAKE.jsonl.gz": "trace with prefix hashes in Mooncake's format"},
    processes=2,
)
PROFILE, INSTANCES = "H100/Llama-3.1-8B", 8
ENGINE = EngineConfig(
    model_name=PROFILE,
    block_size_tokens=16,
    total_blocks=24_881,
    max_num_seqs=256,
    max_num_scheduled_tokens=8192,
    max_model_len=131_072,
    async_scheduling=True,
)
POLICIES = (
    "round_robin",
    "least_outstanding",
    "prefix_hash",
    "longest_match",
    "predicted_latency, no index",
    "predicted_latency",
    "externality, no index",
    "externality",
)
QPS = {"Mooncake": (7.0, 10.0), "Conversations": (60.0, 90.0)}
"""Requests a second: busy, and at the knee."""
LONGER = {"Conversations": 2}
"""Times as many requests, so that conversations get some turns on."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run of the simulator."""

    workload: str
    policy: str
    qps: float
    seed: int


def make(name: str) -> Policy:
    """A fresh policy of that name."""
    if name == LongestMatch.name:
        return LongestMatch(ENGINE)
    return PrefixHash() if name == PrefixHash.name else make_policy(name.partition(",")[0])


def arrivals_for(case: Case, mooncake: Path, requests: int) -> list[Arrival]:
    """The requests of a case, equal for every policy."""
    draws = Random(case.seed)
    requests *= LONGER.get(case.workload, 1)
    if case.workload == "Conversations":
        return conversations(requests / case.qps, case.qps, Conversations(), draws)
    with gzip.open(mooncake, "rt") as lines:
        trace = parse_mooncake(lines)
    return arrivals_of(trace, draws, count=requests, qps=case.qps)


def sizes(arrivals: Sequence[Arrival]) -> dict[str, float]:
    """Number of requests, and tokens of their prompts."""
    return {
        "requests": len(arrivals),
        "prompt_tokens": sum(arrival.prompt_tokens for arrival in arrivals),
        "repeated_ratio": repeated_ratio(arrivals),
    }


def repeated_ratio(arrivals: Sequence[Arrival]) -> float:
    """Share of all prompt tokens that a cache for all, which forgets nothing, would have."""
    seen: set[int] = set()
    hits = 0
    for arrival in arrivals:
        blocks = takewhile(seen.__contains__, arrival.prefix)
        hits += min(PREFIX_BLOCK_TOKENS * sum(1 for _ in blocks), arrival.prompt_tokens)
        seen.update(arrival.prefix)
    return hits / sum(arrival.prompt_tokens for arrival in arrivals)


def run(case: Case, mooncake: Path, requests: int) -> dict[str, Any]:
    """The figures of one case."""
    arrivals = arrivals_for(case, mooncake, requests)
    instance = InstanceConfig(ENGINE, profile_step_time(load_profile(PROFILE)))
    config = ClusterConfig(
        (instance,) * INSTANCES,
        prefix_cache=True,
        predict_hits=not case.policy.endswith("no index"),
    )
    report = simulate(config, arrivals, [make(case.policy)], Random(case.seed))
    return {**asdict(case), **sizes(arrivals), **figures(report)}


def figures(report: Report) -> dict[str, float]:
    prompts = sum(r.prompt_tokens for r in report.served)
    found = a30.figures(report)
    del found["preemptions"]
    found["hit_ratio"] = sum(r.cached_tokens for r in report.served) / prompts
    believed = [(r.predicted.cached_tokens, r.cached_tokens) for r in report.served if r.predicted]
    if any(predicted for predicted, _ in believed):
        found["believed_hit_ratio"] = sum(predicted for predicted, _ in believed) / prompts
        wrong = sum(abs(predicted - actual) for predicted, actual in believed)
        found["misjudged_ratio"] = wrong / prompts
    return found


def tables(numbers: Numbers) -> Blocks:
    """A table for each workload and rate."""
    runs = numbers["runs"]
    lines = [
        made_by(numbers),
        f"{INSTANCES} engines of {PROFILE}, {ENGINE.total_blocks:,} blocks of "
        f"{ENGINE.block_size_tokens} tokens, chunks of {ENGINE.max_num_scheduled_tokens:,} tokens; "
        f"true output lengths; seed {numbers['seed']}. Seconds. *hits*: share of all prompt tokens "
        "that engines found cached. *misjudged*: sum of the differences between the hits that were "
        "foretold for the chosen engine and those found, over all prompt tokens. Last row: what "
        "a cache for all that forgets nothing would have.\n",
    ]
    for workload in dict.fromkeys(run["workload"] for run in runs):
        for qps in sorted({run["qps"] for run in runs if run["workload"] == workload}):
            chosen = [r for r in runs if (r["workload"], r["qps"]) == (workload, qps)]
            tokens = chosen[0]["prompt_tokens"] / 1e6
            title = (
                f"{workload}, {qps:g} requests/s ({chosen[0]['requests']:,}, {tokens:.1f} M tokens)"
            )
            header = ("hits", "misjudged", "TTFT mean", "TTFT P99", "e2e mean", "e2e P99")
            bound = ("*one cache, unbounded*", f"{chosen[0]['repeated_ratio']:.1%}", *[""] * 5)
            lines.append(markdown_table((title, *header), [*map(_row, chosen), bound]))
    return {"tables": "\n".join(lines)}


def _row(found: dict[str, Any]) -> tuple[str, ...]:
    names = ("ttft_mean_s", "ttft_p99_s", "e2e_mean_s", "e2e_p99_s")
    wrong = f"{found['misjudged_ratio']:.1%}" if "misjudged_ratio" in found else ""
    seconds = (f"{found[name]:.2f}" for name in names)
    return (found["policy"], f"{found['hit_ratio']:.1%}", wrong, *seconds)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=3000, help="Requests of a run, about.")
    parser.add_argument("--seed", type=int, default=1)


def measure(options: argparse.Namespace) -> Numbers:
    """Run every policy on both workloads, at both rates."""
    cases = [
        Case(workload, policy, qps, options.seed)
        for workload, rates in QPS.items()
        for qps in rates
        for policy in POLICIES
    ]
    one = partial(run, mooncake=options.mooncake, requests=options.requests)
    return {"seed": options.seed, "runs": run_each(one, cases, options.processes)}
