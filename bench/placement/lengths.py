"""What is it worth to place by better estimates of the answers' lengths?

PROMPTS.jsonl.gz holds answered prompts with their conversations, as `foretell length eval` reads
them. The small model of the schedulers, the tagger's, and a history of lengths estimate each answer
(kept in build/), having learnt from none of them; the simulator then serves them on the Block
paper's cluster with the default policy.
"""

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

from bench.placement.believed import quality, traces_of
from bench.placement.deployed import Kept, by_seed, figures_of
from bench.placement.families import A30
from bench.report import BUILD, Benchmark, Blocks, Numbers, made_by, markdown_table
from bench.stats import geometric_mean, ratio_interval
from foretell.tools.simulate.cluster import instance_config
from foretell.tools.simulate.options import SimulateOptions
from foretell.tools.simulate.run import fits, read_trace
from foretell.workload import arrivals_of

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="5 minutes",
    paths={"PROMPTS.jsonl.gz": "answered prompts, as JSON lines"},
    processes=2,
    packages=("foretell", "numpy", "onnxruntime"),
)
KNOWS = {
    "small": "the small model",
    "tagger": "the tagger's model",
    "history": "history",
    "true": "true lengths",
}
"""What the scheduler is told when a request arrives; the first is what it does."""
POLICY = "slo"
RATES, SECONDS, SEEDS = (21.5, 22.3), 100.0, 10
SHOWN = {
    "ttft_mean_s": "mean TTFT",
    "ttft_p99_s": "P99 TTFT",
    "e2e_mean_s": "mean e2e",
    "e2e_p99_s": "P99 e2e",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One run of the simulator."""

    knows: str
    qps: float
    seed: int


def run(case: Case, traces: dict[str, Path]) -> Numbers:
    """The figures of one case; its arrivals depend on rate and seed alone."""
    is_true = case.knows == "true"
    trace = read_trace(str(traces["tagger" if is_true else case.knows]), "csv")
    count = int(case.qps * SECONDS)
    arrivals = arrivals_of(
        replace(trace, timed=False), Random(f"{case.seed} trace"), count=count, qps=case.qps
    )
    engine = instance_config(A30[0], SimulateOptions("", A30)).engine
    fitting = [arrival for arrival in arrivals if fits(arrival, {engine})]
    estimates = "true" if is_true else "told"
    return {**asdict(case), **figures_of(A30, fitting, POLICY, estimates, case.seed)}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=SEEDS, help="Number of seeds, 2 at least.")


def measure(options: argparse.Namespace) -> Numbers:
    """Estimate lengths, and simulate what has not been simulated yet."""
    traces = traces_of(options.prompts, BUILD)
    cases = [
        Case(knows, qps, seed)
        for seed in range(1, options.seeds + 1)
        for qps in RATES
        for knows in KNOWS
    ]
    kept = Kept(BENCH.kept)
    rows = kept.all_of(partial(run, traces=traces), cases, options.processes, "runs")
    return {
        "estimates": {source: quality(trace) for source, trace in traces.items()},
        "rows": rows,
    }


def tables(page: Numbers) -> Blocks:
    """For each rate, the figures and their ratios to those of the small model."""
    seeds = len({row["seed"] for row in page["rows"]})
    header = ("told", "MAE of the median", *SHOWN.values())
    text = [
        made_by(page),
        f"*Laboratory.* 12 engines of A30/Llama-2-7b-hf, {SECONDS:g} s of the prompts as a Poisson "
        f"process for each of {seeds} seeds, placed by `{POLICY}`. Geometric means over the seeds; "
        "in brackets, ratios to those of the small model with 95% intervals (Student's t).\n",
    ]
    for qps in RATES:
        text += [f"### {qps:g} requests/s\n", markdown_table(header, _rows(page, qps))]
    return {"tables": "\n".join(text)}


def _rows(page: Numbers, qps: float) -> Iterator[list[str]]:
    for knows, title in KNOWS.items():
        estimates = page["estimates"].get(knows)
        cells = [title, f"{estimates['mae']:.0f}" if estimates else "0"]
        for figure in SHOWN:
            own, first = (
                by_seed(page["rows"], figure, knows=name, qps=qps)
                for name in (knows, next(iter(KNOWS)))
            )
            cell = f"{geometric_mean(own):.2f} s"
            if knows != next(iter(KNOWS)):
                ratios = [a / b for a, b in zip(own, first, strict=True)]
                mean, low, high = ratio_interval(ratios)
                cell += f" ({mean:.2f}, {low:.2f} to {high:.2f})"
            cells.append(cell)
        yield cells
