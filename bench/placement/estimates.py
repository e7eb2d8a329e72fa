"""What do estimated lengths lose against true ones, in the capacity of a cluster?

PROMPTS.jsonl.gz holds answered prompts with their conversations, as `foretell length eval` reads
them. The shipped length model estimates each answer, as the tagger service would (kept in build/);
the simulator then serves them on the Block paper's cluster, to policies that know the true lengths,
the model's distributions, its means alone, or what history says. Finished runs are kept in build/,
so that an interrupted run goes on as long as the code is the same.
"""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

from bench.placement.believed import SOURCES, quality, traces_of
from bench.placement.block.capacity import Search
from bench.placement.block.runs import Results, Runner, probe, state_of_the_code
from bench.placement.block.settings import INSTANCES, TTFT_BOUND_S, Case, Scheduler, Setting
from bench.report import BUILD, Benchmark, Blocks, Numbers, made_by, markdown_table
from bench.runs import progress
from bench.stats import plus_minus, ratio_interval
from foretell.length.distribution import LengthRule

BENCH = Benchmark(
    __file__,
    __doc__,
    takes="15 minutes",
    paths={"PROMPTS.jsonl.gz": "answered prompts, as JSON lines"},
    processes=1,
    packages=("foretell", "numpy", "onnxruntime"),
)
GUESS_QPS = 23.0
NEAR, STEP, WIDTH = 0.96, 1.03, 0.031
"""Where searches with estimates start, of the capacity with true lengths, and how they go on: the
bound is interpolated between rates so close to each other."""
REQUESTS = 2000
SEEDS = 5
POLICIES = ("externality", "predicted_latency")
TRUE = "true lengths"
PROBES = 4  # of a search, for the progress bar


@dataclass(frozen=True, slots=True)
class Variant:
    """A policy, and what it is told of lengths."""

    policy: str
    knows: str
    source: str = "tagger"
    estimates: str = "told"
    length_rule: LengthRule = "survival"

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler of the simulator's cases."""
        title = f"{self.policy}, {self.knows}"
        return Scheduler(title, self.policy, self.estimates, self.length_rule)


def variants() -> list[Variant]:
    """All variants, those with true lengths first."""
    known = [Variant(policy, TRUE, estimates="true") for policy in POLICIES]
    for policy in POLICIES:
        known += [
            Variant(policy, "tagger's distributions"),
            Variant(policy, "tagger's means, Block's rule", length_rule="block"),
            Variant(policy, "history", source="history"),
        ]
    return known


Searches = dict[tuple[Variant, int], Search]


class Bench:
    """All searches and runs."""

    def __init__(self, traces: dict[str, Path], runner: Runner, seeds: Sequence[int]) -> None:
        self._settings = {
            source: Setting(
                f"answered prompts, {source}", GUESS_QPS, trace=traces[source].name,
                requests=REQUESTS,
            )
            for source in SOURCES
        }  # fmt: skip
        self._runner, self.seeds = runner, seeds
        self.searches = Searches()

    def run(self, wanted: Sequence[Variant]) -> None:
        """Find the capacities, with true lengths first, from which the other searches start; and
        run everybody at that of Block."""
        for first in (True, False):
            for variant in wanted:
                if (variant.knows == TRUE) is not first:
                    continue
                for seed in self.seeds:
                    search = Search(GUESS_QPS, TTFT_BOUND_S)
                    if not first:
                        near_qps = NEAR * self.capacity_qps(true_of(variant), seed)
                        search = Search(round(near_qps, 3), TTFT_BOUND_S, STEP, WIDTH)
                    self.searches[variant, seed] = search
                    probe(self._runner, search, partial(self.case, variant, seed=seed))
            self._runner.run()
        for case in self.at_blocks(wanted):
            self._runner.ask(case)
        self._runner.run()

    def capacity_qps(self, variant: Variant, seed: int) -> float:
        """The capacity that `run` found."""
        return self.searches[variant, seed].capacity_qps

    def at_blocks(self, wanted: Iterable[Variant]) -> Iterator[Case]:
        """Runs at the rate that Block just keeps with true lengths, seed by seed."""
        for variant in wanted:
            for seed in self.seeds:
                yield self.at_block(variant, seed)

    def at_block(self, variant: Variant, seed: int) -> Case:
        """The run of a variant and a seed at that rate."""
        block = Variant("predicted_latency", TRUE, estimates="true")
        return self.case(variant, round(self.capacity_qps(block, seed), 3), seed)

    def case(self, variant: Variant, qps: float, seed: int) -> Case:
        """One run."""
        return Case(self._settings[variant.source], variant.scheduler, qps, seed)


def true_of(variant: Variant) -> Variant:
    """The variant of the same policy that knows true lengths."""
    return Variant(variant.policy, TRUE, estimates="true")


def rows_of(bench: Bench, wanted: Sequence[Variant], kept: Results) -> list[Numbers]:
    """A row for each variant and seed."""
    rows = []
    for variant in wanted:
        for seed in bench.seeds:
            case, search = bench.at_block(variant, seed), bench.searches[variant, seed]
            found = kept[case]
            rows.append(
                {
                    "policy": variant.policy,
                    "knows": variant.knows,
                    "seed": seed,
                    "capacity_qps": round(search.capacity_qps, 3),
                    "probes": search.as_json(),
                    "common_qps": case.qps,
                    "ttft_p99_s": found["ttft_p99_s"],
                    "e2e_mean_s": found["e2e_mean_s"],
                    "preemptions_per_1000": 1000 * found["preemptions"] / found["requests"],
                }
            )
    return rows


def tables(page: Numbers) -> Blocks:
    """A table for each policy, and one of the estimates themselves."""
    rows, tagger = page["rows"], page["estimates"]["tagger"]
    seeds = sorted({row["seed"] for row in rows})
    lines = [
        made_by(page),
        f"{INSTANCES} engines of A30/Llama-2-7b-hf, 48 seats, chunks of 512 tokens, 1,056 blocks; "
        f"{page['requests']:,} of {tagger['requests']:,} answered prompts, drawn and put in order "
        f"by the seed ({len(seeds)} seeds), as a Poisson process; prompts of "
        f"{tagger['prompt_tokens_mean']:.0f} tokens on average, earlier turns included, which are "
        f"computed in full; answers of {tagger['output_tokens_mean']:.0f}. "
        f"Capacity: the highest rate at which the P99 of TTFT is within {TTFT_BOUND_S:g} s. "
        "± is half of a 95% confidence interval (Student's t); *of true* the geometric mean of "
        "ratios to the same policy's capacity with true lengths, seed by seed, with its interval. "
        "The other columns are means at the capacity of `predicted_latency` with true lengths, "
        "seed by seed.\n",
    ]
    for policy in dict.fromkeys(row["policy"] for row in rows):
        mine = [row for row in rows if row["policy"] == policy]
        header = (f"`{policy}` knows", "capacity", "of true", "P99 TTFT", "mean e2e")
        known = dict.fromkeys(row["knows"] for row in mine)
        table = [_row(knows, mine) for knows in known]
        lines.append(markdown_table((*header, "preemptions per 1,000"), table))
    header = ("estimates", "MAE of the median", "mean", "deviation of log(true / mean)", "Spearman")
    lines.append(
        markdown_table(
            (*header, "50 / 80 / 95% interval"),
            [_quality_row(source, found) for source, found in page["estimates"].items()],
        )
    )
    return {"tables": "\n".join(lines)}


def _row(knows: str, rows: Sequence[Numbers]) -> tuple[str, ...]:
    mine, true = ([r for r in rows if r["knows"] == name] for name in (knows, TRUE))
    ratios = [a["capacity_qps"] / b["capacity_qps"] for a, b in zip(mine, true, strict=True)]
    figures = ("ttft_p99_s", "e2e_mean_s", "preemptions_per_1000")
    means = [fmean(row[name] for row in mine) for name in figures]
    return (
        knows,
        plus_minus([row["capacity_qps"] for row in mine], 2),
        "" if knows == TRUE else _ratio(ratios),
        f"{means[0]:.2f} s",
        f"{means[1]:.2f} s",
        f"{means[2]:.0f}",
    )


def _ratio(ratios: Sequence[float]) -> str:
    mean, low, high = (100 * ratio for ratio in ratio_interval(ratios))
    return f"{mean:.1f}% ({low:.1f} to {high:.1f})"


def _quality_row(source: str, found: Numbers) -> tuple[str, ...]:
    return (
        source,
        f"{found['mae']:.1f}",
        f"{found['expected_tokens_mean']:.0f}",
        f"{found['log_error_sigma']:.2f}",
        f"{found['spearman']:.2f}",
        " / ".join(f"{100 * share:.1f}" for share in found["coverage"].values()),
    )


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=SEEDS, help="Number of seeds, 2 to 10.")


def measure(options: argparse.Namespace) -> Numbers:
    """Estimate lengths, and simulate what has not been simulated yet."""
    traces, kept = traces_of(options.prompts, BUILD), Results(BENCH.kept)
    wanted = variants()
    with progress() as bar:
        task = bar.add_task("runs", total=(PROBES + 1) * len(wanted) * options.seeds)
        runner = Runner(str(BUILD), kept, options.processes, lambda: bar.advance(task))
        bench = Bench(traces, runner, range(1, options.seeds + 1))
        bench.run(wanted)
        bar.update(task, total=bar.tasks[task].completed)
    return {
        "state_of_the_code": state_of_the_code(),
        "requests": REQUESTS,
        "cpu_s": round(runner.cpu_s),
        "estimates": {source: quality(trace) for source, trace in traces.items()},
        "rows": rows_of(bench, wanted, kept),
    }
