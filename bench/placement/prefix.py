"""What is it worth that predictors know which prefixes their engines have cached?

    python -m bench.placement.prefix MOONCAKE.jsonl.gz [--requests N] [--seed N] [--processes N]

MOONCAKE.jsonl.gz is a trace with prefix hashes in Mooncake's format (arXiv 2407.00079). The other
workload is made up: conversations whose prompts repeat what was said before
(`foretell.workload.sessions`). `predicted_latency` and `externality` with and without the index of
prefixes (`foretell.engine.prefixes`), against policies that ask nobody and against what gateways do
with prefixes (`bench.placement.prefix_baselines`). Writes bench/placement/results/prefix.json and
.md, and what docs/policies.md says of it.
"""

import argparse
import gzip
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from random import Random
from typing import Any

from bench.placement.prefix_baselines import LongestMatch, PrefixHash
from bench.stats import markdown_table, write_into
from foretell.config import load_profile
from foretell.latency.tables import profile_step_time
from foretell.model import EngineConfig
from foretell.policy import Policy, make_policy
from foretell.sim import ClusterConfig, InstanceConfig, Report, simulate
from foretell.workload import Arrival, Conversations, arrivals_of, conversations, parse_mooncake
from foretell.workload.stream import PREFIX_BLOCK_TOKENS
from tools.harness.machine import describe_machine, describe_run, machine_line

RESULTS = Path(__file__).resolve().parent / "results"
PAGE = RESULTS.parent.parent / "docs" / "policies.md"
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
    """The same for every policy."""
    draws = Random(case.seed)
    requests *= LONGER.get(case.workload, 1)
    if case.workload == "Conversations":
        return conversations(requests / case.qps, case.qps, Conversations(), draws)
    with gzip.open(mooncake, "rt") as lines:
        trace = parse_mooncake(lines)
    return arrivals_of(trace, draws, count=requests, qps=case.qps)


def sizes(arrivals: Sequence[Arrival]) -> dict[str, float]:
    """Of the requests themselves."""
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
    found = {
        "hit_ratio": sum(r.cached_tokens for r in report.served) / prompts,
        "ttft_mean_s": report.mean(lambda r: r.ttft_s),
        "ttft_p99_s": report.quantile(0.99, lambda r: r.ttft_s),
        "e2e_mean_s": report.mean(lambda r: r.e2e_s),
        "e2e_p99_s": report.quantile(0.99, lambda r: r.e2e_s),
    }
    believed = [(r.predicted.cached_tokens, r.cached_tokens) for r in report.served if r.predicted]
    if any(predicted for predicted, _ in believed):
        found["believed_hit_ratio"] = sum(predicted for predicted, _ in believed) / prompts
        wrong = sum(abs(predicted - actual) for predicted, actual in believed)
        found["misjudged_ratio"] = wrong / prompts
    return found


def run_all(
    cases: Sequence[Case], mooncake: Path, requests: int, processes: int
) -> list[dict[str, Any]]:
    """Every case, with a line on stderr as each ends."""
    found = []
    with ProcessPoolExecutor(processes) as pool:
        futures = [pool.submit(run, case, mooncake, requests) for case in cases]
        for number, (case, future) in enumerate(zip(cases, futures, strict=True), 1):
            found.append(future.result())
            print(f"{number}/{len(cases)} {case}", file=sys.stderr)
    return found


def markdown(page: dict[str, Any]) -> str:
    """What the page says, without a heading."""
    runs = page["runs"]
    lines = [
        f"Made by `{page['command']}` on {page['date']}; {machine_line(page['machine'])}.\n",
        f"{INSTANCES} engines of {PROFILE}, {ENGINE.total_blocks:,} blocks of "
        f"{ENGINE.block_size_tokens} tokens, chunks of {ENGINE.max_num_scheduled_tokens:,} tokens; "
        f"true output lengths; seed {page['seed']}. Seconds. *hits*: share of all prompt tokens "
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
    return "\n".join(lines)


def _row(found: dict[str, Any]) -> tuple[str, ...]:
    names = ("ttft_mean_s", "ttft_p99_s", "e2e_mean_s", "e2e_p99_s")
    wrong = f"{found['misjudged_ratio']:.1%}" if "misjudged_ratio" in found else ""
    seconds = (f"{found[name]:.2f}" for name in names)
    return (found["policy"], f"{found['hit_ratio']:.1%}", wrong, *seconds)


def main() -> None:
    """Simulate and write."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mooncake", type=Path, help="trace with prefix hashes, gzipped JSON lines")
    parser.add_argument("--requests", type=int, default=3000, help="per run, about")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    facts: dict[str, Any] = {
        **describe_run("bench.placement.prefix"),
        "machine": describe_machine("foretell", "numba", "numpy"),
        "seed": options.seed,
    }
    facts["command"] = facts["command"].replace(str(options.mooncake), "MOONCAKE.jsonl.gz")
    cases = [
        Case(workload, policy, qps, options.seed)
        for workload, rates in QPS.items()
        for qps in rates
        for policy in POLICIES
    ]
    found = run_all(cases, options.mooncake, options.requests, options.processes)
    page = {**facts, "runs": found}
    (RESULTS / "placement_prefix.json").write_text(json.dumps(page, indent=1) + "\n")
    text = markdown(page)
    (RESULTS / "placement_prefix.md").write_text(f"# Prefix affinity in the simulator\n\n{text}")
    write_into(PAGE, "placement_prefix", text)
    print(text)


if __name__ == "__main__":
    main()
