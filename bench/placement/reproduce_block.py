"""Does the Block paper's evaluation come out as published?

The evaluation of arXiv 2508.03611 in the simulator: 12 A30 with Llama-2-7B, its six schedulers, and
its variations of batch, chunk and model. TRACES holds `sharegpt_10k_llama2_lengths.csv` (columns
`num_prefill_tokens` and `num_decode_tokens`). Finished runs are kept in build/, so that an
interrupted run resumes as long as the code is the same.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean

from bench.placement.broadcast import broadcast
from bench.placement.simulated import A30, by_seed, capacity_qps, figures, simulated
from bench.report import Benchmark, Blocks, Numbers, made_by
from bench.runs import Kept, state_of_the_code
from foretell.tools.intervals import change, plus_minus
from foretell.tools.markdown import markdown_table
from foretell.tools.simulate.options import EngineOptions, SimulateOptions
from foretell.tools.simulate.run import read_trace, relative_errors
from foretell.workload import Trace, arrivals_of

BENCH = Benchmark(
    __file__, __doc__, takes="20 minutes", paths={"TRACES": "folder of the traces"}, processes=1
)
SHAREGPT = "sharegpt_10k_llama2_lengths.csv"
BOUND_S = 3.0
"""Bound on the P99 of TTFT; the capacity is the highest rate at which it is kept."""
ESTIMATED = "noise:0.3"
"""Estimated lengths: their logarithm is off by a standard deviation of 0.3."""
SEEDS, QPS, SHOWN_QPS = (1, 2, 3), (20, 24, 28, 30, 32, 34, 36), 32
REQUESTS, LONG, LONG_QPS = 2000, 10_000, 30
LLUMNIX, BLOCK, BLOCK_STAR = "Llumnix-", "Block", "Block*"
BROADCAST = "broadcast"
"""The scheduler of Figure 5 (`bench.placement.broadcast`)."""
FIGURE_5 = {
    "error of e2e, random scheduler, true lengths": (BROADCAST, "e2e_mape"),
    "error of e2e, Block*": ("Block*", "e2e_mape"),
    "best instance, Block": (BROADCAST, "best predicted_latency"),
    "best instance, Llumnix-": (BROADCAST, "best llumnix_minus"),
    "e2e over the best's, Block": (BROADCAST, "over predicted_latency"),
    "e2e over the best's, Llumnix-": (BROADCAST, "over llumnix_minus"),
}
SCHEDULERS = {
    "random": "random",
    "round-robin": "round_robin",
    "min-QPM": "min_qpm",
    "INFaaS++": "infaas",
    LLUMNIX: "llumnix_minus",
    BLOCK_STAR: "predicted_latency",
    BLOCK: "predicted_latency",
}
"""The paper's names, and the policies."""
PAPER = {
    "mean TTFT": ("ttft_mean_s", -0.8807, -0.2358),
    "P99 TTFT": ("ttft_p99_s", -0.786, -0.1084),
    "mean e2e": ("e2e_mean_s", -0.1987, -0.1256),
    "P99 e2e": ("e2e_p99_s", -0.0355, -0.0082),
    "throughput": ("throughput_rps", 0.0444, 0.0253),
}
"""Section 6.3, at 32 requests a second: Block and Block* against Llumnix-."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Engines, the rate at which the search for their capacity begins, and the paper's gain of
    Block and Block* over Llumnix- (section 6.3 and table 2)."""

    engines: EngineOptions
    guess_qps: float
    gains: tuple[float, float]


SETTINGS = {
    "default": Setting(A30, 31.5, (0.042, 0.013)),
    "batch 24": Setting(replace(A30, max_num_seqs=24), 25.5, (0.167, 0.138)),
    "chunk 2048": Setting(replace(A30, max_num_batched_tokens=2048), 31.5, (0.057, 0.043)),
    "Qwen2-7B": Setting(
        replace(A30, profile="A30/Qwen2-7B", num_blocks=7289), 62.0, (0.102, 0.095)
    ),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One run of the simulator, or the search for a capacity if `qps` is 0."""

    setting: str
    scheduler: str
    qps: float
    seed: int
    requests: int = REQUESTS


def run(case: Case, traces: Path) -> Numbers:
    """The figures of one case. A seed's requests are the same for all schedulers; at another rate
    only their times differ."""
    options = SimulateOptions(
        engines=(SETTINGS[case.setting].engines,),
        policy=SCHEDULERS.get(case.scheduler, ""),
        estimates=ESTIMATED if case.scheduler == BLOCK_STAR else "true",
        length_rule="block" if case.scheduler == BLOCK_STAR else "survival",
    )
    trace = _read(traces / SHAREGPT)
    arrivals = arrivals_of(trace, Random(f"{case.seed} trace"), count=case.requests, qps=case.qps)
    arrivals = [a for a in arrivals if a.prompt_tokens + a.output_tokens <= A30.max_model_len]
    if case.scheduler == BROADCAST:
        return broadcast(options, arrivals, case.seed)
    report = simulated(options, arrivals, case.seed)
    return {**figures(report), **relative_errors(report.served)}


@lru_cache(maxsize=1)
def _read(path: Path) -> Trace:
    return read_trace(str(path), "csv")


def found(case: Case, traces: Path) -> Numbers:
    """The figures of a run, or a capacity."""
    if case.qps:
        return run(case, traces)
    return {
        "qps": capacity_qps(
            lambda qps: float(run(replace(case, qps=qps), traces)["ttft_p99_s"]),
            BOUND_S,
            SETTINGS[case.setting].guess_qps,
        )
    }


def cases(quick: bool) -> Iterator[Case]:
    """All cases: the sweep over rates, searches, and runs as long as the paper's."""
    seeds = SEEDS[:2] if quick else SEEDS
    rates = (SHOWN_QPS,) if quick else QPS
    schedulers = SCHEDULERS if quick else (*SCHEDULERS, BROADCAST)
    for seed, qps, scheduler in product(seeds, rates, schedulers):
        yield Case("default", scheduler, float(qps), seed, 300 if quick else REQUESTS)
    if not quick:
        for seed, name, scheduler in product(seeds, SETTINGS, (LLUMNIX, BLOCK_STAR, BLOCK)):
            yield Case(name, scheduler, 0.0, seed)
        for seed, qps, scheduler in product(SEEDS[:2], (LONG_QPS,), (LLUMNIX, BLOCK)):
            yield Case("default", scheduler, float(qps), seed, LONG)


def measure(options: argparse.Namespace) -> Numbers:
    """Simulate the missing cases."""
    asked = list(cases(options.quick))
    work = partial(found, traces=options.traces)
    results = Kept(BENCH.kept, state_of_the_code()).all_of(work, asked, options.processes, "runs")
    both = zip(asked, results, strict=True)
    return {"rows": [{**asdict(case), **result, "search": not case.qps} for case, result in both]}


def tables(page: Numbers) -> Blocks:
    """Capacities, latencies at the paper's rate, the error of predictions, and longer runs."""
    rows = page["rows"]
    sweep = [r for r in rows if not r["search"] and r["requests"] != LONG]
    searches, long = [r for r in rows if r["search"]], [r for r in rows if r["requests"] == LONG]
    parts = [made_by(page), _latencies(sweep)]
    if searches:
        parts += [_capacities(searches), _predictions(sweep), _long(long)]
    return {"tables": "\n".join(parts)}


def _latencies(sweep: Sequence[Numbers]) -> str:
    lines = []
    for title, (name, block, star) in PAPER.items():
        cells = [title]
        for scheduler, paper in ((BLOCK, block), (BLOCK_STAR, star)):
            mine, base = (
                by_seed(sweep, name, scheduler=each, qps=SHOWN_QPS) for each in (scheduler, LLUMNIX)
            )
            cells += [f"{paper:+.1%}", change([a / b for a, b in zip(mine, base, strict=True)])]
        lines.append(cells)
    title = f"at {SHOWN_QPS} requests/s, against Llumnix- (Fig. 6)"
    return markdown_table((title, "Block, paper", "here", "Block*, paper", "here"), lines)


def _capacities(searches: Sequence[Numbers]) -> str:
    lines = []
    for name, setting in SETTINGS.items():
        rates = {
            scheduler: by_seed(searches, "qps", setting=name, scheduler=scheduler)
            for scheduler in (LLUMNIX, BLOCK, BLOCK_STAR)
        }
        cells = [name, *(plus_minus(rates[each], 1) for each in (LLUMNIX, BLOCK))]
        for scheduler, paper in zip((BLOCK, BLOCK_STAR), setting.gains, strict=True):
            ratios = [a / b for a, b in zip(rates[scheduler], rates[LLUMNIX], strict=True)]
            cells += [f"{paper:+.1%}", change(ratios)]
        lines.append(cells)
    gains = ("Block's gain, paper", "here", "Block*'s, paper", "here")
    return markdown_table(("capacity, requests/s (table 2)", LLUMNIX, BLOCK, *gains), lines)


def _predictions(sweep: Sequence[Numbers]) -> str:
    lines = []
    for title, (scheduler, figure) in FIGURE_5.items():
        means = (fmean(by_seed(sweep, figure, scheduler=scheduler, qps=qps)) for qps in QPS)
        lines.append([title, *(f"{mean:.1%}" for mean in means)])
    return markdown_table(("predictions (Fig. 5), requests/s", *map(str, QPS)), lines)


def _long(rows: Sequence[Numbers]) -> str:
    lines = []
    for title, name in (("mean TTFT", "ttft_mean_s"), ("P99 TTFT", "ttft_p99_s")):
        base, mine = (by_seed(rows, name, scheduler=s, qps=LONG_QPS) for s in (LLUMNIX, BLOCK))
        changes = " and ".join(f"{b / a - 1:+.0%}" for a, b in zip(base, mine, strict=True))
        lines.append([title, f"{fmean(base):.2f}", f"{fmean(mine):.2f}", changes])
    title = f"{LONG:,} requests at {LONG_QPS}/s, s"
    return markdown_table((title, LLUMNIX, BLOCK, "by seed"), lines)
