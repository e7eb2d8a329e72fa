"""How much sooner is a file of offline requests done in the order that blends densities?

Traces 1 to 4 of BlendServe (ASPLOS '26, table 2) are made by its recipe from other sources
(`bench.offline.mixes`) and served by one simulated engine: scheduling, KV blocks, prefix cache and
preemptions are those of the twin of vLLM's scheduler, and a step's time follows from its sums of
computing and reading. Orders are FCFS (as submitted, one source after the other), random,
depth-first, BlendServe's dual scan with known and with sampled lengths, and feedback control with
both.
"""

import argparse
from functools import partial
from itertools import product
from statistics import fmean

from bench.offline.blend_runs import DFS, ENGINES, FCFS, RANDOM, TRACES, Case, serve
from bench.offline.mixes import VIDEO_TOKENS
from bench.report import Benchmark, Blocks, Numbers, made_by
from bench.runs import Kept, state_of_the_code
from foretell.tools.intervals import plus_minus
from foretell.tools.markdown import markdown_table

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="70 minutes",
    paths={"DATA": "folder with traces/ and offline/"},
    processes=1,
)
ORDERS = (
    FCFS,
    RANDOM,
    DFS,
    "BlendServe, known",
    "BlendServe, sampled",
    "feedback, known",
    "feedback, sampled",
)
PLAIN = (DFS, "feedback, sampled")
"""Orders that also run on an engine that runs one operator after another."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=200_000, help="Requests of a file.")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--traces", nargs="+", default=list(TRACES), choices=TRACES)


def measure(options: argparse.Namespace) -> Numbers:
    """Run every order on every trace, and some on an engine without overlap."""
    size = options.requests, VIDEO_TOKENS
    if options.quick:
        options.seeds, options.traces = 1, ["2"]
        size = 5_000, 2_048
    cases = [
        Case(trace, engine, order, seed, *size)
        for seed in range(1, options.seeds + 1)
        for trace, engine in (*product(options.traces, ENGINES),)
        for order in (ORDERS if engine == "overlapping" else PLAIN)
        if engine == "overlapping" or trace == "2"
    ]
    kept = Kept(BENCH.kept, state_of_the_code())
    runs = kept.all_of(partial(serve, data=options.data), cases, options.processes, "runs")
    return {"runs": runs, "cpu_s": round(sum(found["cpu_s"] for found in runs))}


def tables(numbers: Numbers) -> Blocks:
    """A row for each order of each trace and engine."""
    runs = numbers["runs"]
    seeds = len({one["seed"] for one in runs})
    text = (
        f"*Laboratory*: simulated engine, {runs[0]['requests']:,} requests, answers of videos "
        f"{runs[0]['video_tokens']:,} tokens on average, {seeds} seeds (other prompts, lengths and "
        "questions in each); ± is half the 95% interval over seeds. *to DFS*: throughput over that "
        "of depth-first order on the same engine. *optimum*: share of the paper's practical "
        "optimum. *bound*: share of the lower bound that counts the steps' cost, too; its row says "
        "how much faster than depth-first order anything can be. *sharing*: share of the prefix "
        "sharing possible that was achieved.\n"
    )
    rows = []
    for engine, trace in product(ENGINES, TRACES):
        chosen = [one for one in runs if (one["engine"], one["trace"]) == (engine, trace)]
        dfs_s = {one["seed"]: one["seconds"] for one in chosen if one["order"] == DFS}
        for order in dict.fromkeys(one["order"] for one in chosen):
            own = [one for one in chosen if one["order"] == order]
            rows.append(_row(f"{trace}, {engine}: {order}", own, dfs_s))
        if chosen:
            dfs = [one for one in chosen if one["order"] == DFS]
            most = fmean(1.0 / one["share_of_bound"] for one in dfs)
            rows.append((f"{trace}, {engine}: *bound*", f"{most:.3f}", "", "1.000", "100.0%"))
    header = ("trace, engine: order", "to DFS", "optimum", "bound", "sharing")
    return {"tables": "\n".join([made_by(numbers), text, markdown_table(header, rows)])}


def _row(title: str, runs: list[Numbers], dfs_s: dict[int, float]) -> tuple[str, ...]:
    return (
        title,
        plus_minus([dfs_s[one["seed"]] / one["seconds"] for one in runs], 3),
        plus_minus([one["share_of_optimum"] for one in runs], 3),
        plus_minus([one["share_of_bound"] for one in runs], 3),
        f"{fmean(one['sharing_kept'] for one in runs):.1%}",
    )
