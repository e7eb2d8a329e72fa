"""What are more KV memory and other engine flags worth, beside a better placement?

TRACES holds the traces. At the rate at which the engines as they are just keep the P99 of TTFT
within the bound, seed by seed, the same requests are served with one flag changed. Placed by `slo`,
with true lengths, and with estimates that err as the shipped length model does. Finished runs are
kept in build/.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

from bench.placement.block.capacity import Search
from bench.placement.block.runs import Results, Runner, probe, state_of_the_code
from bench.placement.block.settings import AZURE, Case, Scheduler, Setting
from bench.report import Benchmark, Blocks, Numbers, made_by, markdown_table
from bench.runs import progress
from bench.stats import change, plus_minus

BENCH = Benchmark(
    __file__, __doc__, takes="20 minutes", paths={"TRACES": "folder of the traces"}, processes=1
)
ESTIMATED = "tagger"
KNOWN = {"true": "true lengths", ESTIMATED: "estimates with the tagger's errors"}
GUESS_QPS = {
    ("ShareGPT", "true"): 33.0,
    ("ShareGPT", ESTIMATED): 31.0,
    ("Azure 2023 conversations", "true"): 14.5,
    ("Azure 2023 conversations", ESTIMATED): 13.5,
    ("Mooncake, 8 H100", "true"): 13.0,
}
NEAR, STEP = 1.15, 1.08
"""Where the search with twice the memory starts, of the capacity as it is, and its steps."""
SEEDS = (1, 2, 3, 4, 5)
SHAREGPT = Setting("ShareGPT", 33.0)
AZURE_2023 = Setting("Azure 2023 conversations", 16.5, trace=AZURE, windows=True, requests=1500)
MOONCAKE = Setting(
    "Mooncake, 8 H100",
    13.0,
    profile="H100/Llama-3.1-8B",
    seats=256,
    chunk=8192,
    blocks=24_881,
    trace="mooncake_conversation.t0-2100.jsonl.gz",
    trace_format="mooncake",
    windows=True,
    instances=8,
    max_model_len=131_072,
    ttft_bound_s=8.0,
    requests=1350,
)
SHOWN = (
    ("ttft_mean_s", "mean TTFT"),
    ("ttft_p99_s", "P99 TTFT"),
    ("e2e_mean_s", "mean e2e"),
    ("e2e_p99_s", "P99 e2e"),
)
PROBES = 5  # of a search, for the progress bar

Changed = Callable[[Case], Case]


@dataclass(frozen=True, slots=True)
class Variant:
    """One flag changed, or several."""

    title: str
    change: Changed
    searched: bool = False
    """Whether its capacity is searched for."""


def engines(blocks: float = 1.0, seats: float = 1.0, chunk: float = 1.0) -> Changed:
    """The limits of the engines times these factors."""

    def changed(case: Case) -> Case:
        now = case.setting
        limits = replace(
            now,
            blocks=int(now.blocks * blocks),
            seats=int(now.seats * seats),
            chunk=int(now.chunk * chunk),
        )
        return replace(case, setting=limits)

    return changed


def watermark(case: Case) -> Case:
    """A hundredth of the blocks is left free by admissions."""
    return replace(case, setting=replace(case.setting, watermark=0.01))


def by_priority(case: Case) -> Case:
    """Engines admit by priority: the largest requests go last for a while, where that pays."""
    return replace(case, setting=replace(case.setting, by_priority=True))


def without_prefixes(case: Case) -> Case:
    """Predictors do not know what engines have cached."""
    return replace(case, scheduler=replace(case.scheduler, knows_prefixes=False))


AS_IS = Variant("as it is", lambda case: case, searched=True)
MORE_MEMORY = (
    Variant("KV memory x 1.25", engines(blocks=1.25)),
    Variant("KV memory x 1.5", engines(blocks=1.5)),
    Variant("KV memory x 2 (FP8)", engines(blocks=2)),
)
MOST_MEMORY = replace(MORE_MEMORY[-1], searched=True)
LARGER_STEPS = Variant("max_num_batched_tokens x 4", engines(chunk=4))
BY_PRIORITY = Variant("scheduling-policy priority", by_priority)
BOTH = Variant("KV memory x 2, max_num_batched_tokens x 4", engines(blocks=2, chunk=4))
SHORT = (AS_IS, *MORE_MEMORY[:2], MOST_MEMORY, LARGER_STEPS, BY_PRIORITY, BOTH)
VARIANTS = (
    *SHORT,
    Variant("max_num_batched_tokens x 2", engines(chunk=2)),
    Variant("max_num_seqs x 2", engines(seats=2)),
    Variant("max_num_seqs x 1/2", engines(seats=0.5)),
    Variant("watermark 1%", watermark),
    Variant("KV memory x 2, max_num_seqs x 2", engines(blocks=2, seats=2)),
)
WITH_PREFIXES = (AS_IS, Variant("cached prefixes not known", without_prefixes), *MORE_MEMORY)


@dataclass(frozen=True, slots=True)
class Family:
    """A cluster with its requests and what is known of their lengths."""

    setting: Setting
    estimates: str
    variants: tuple[Variant, ...]

    @property
    def title(self) -> str:
        """The heading of its table."""
        return f"{self.setting.name}, {KNOWN[self.estimates]}"

    @property
    def guess_qps(self) -> float:
        """Where the search for its capacity starts."""
        return GUESS_QPS[self.setting.name, self.estimates]

    def case(self, variant: Variant, qps: float, seed: int) -> Case:
        """One run."""
        return variant.change(
            Case(self.setting, Scheduler("slo", "slo", self.estimates), qps, seed)
        )


def families() -> list[Family]:
    """All that is run."""
    chats = (SHAREGPT, AZURE_2023)
    return [
        *(Family(chat, "true", VARIANTS) for chat in chats),
        *(Family(chat, ESTIMATED, SHORT) for chat in chats),
        Family(MOONCAKE, "true", WITH_PREFIXES),
    ]


Searches = dict[tuple[Family, Variant, int], Search]


def searched(all_families: Sequence[Family], runner: Runner) -> Searches:
    """The capacities, those of the engines as they are first, from which the others start."""
    searches = Searches()
    for first in (True, False):
        for family in all_families:
            for variant in family.variants:
                if not variant.searched or (variant is AS_IS) is not first:
                    continue
                for seed in SEEDS:
                    search = Search(family.guess_qps, family.setting.ttft_bound_s)
                    if not first:
                        near_qps = round(NEAR * searches[family, AS_IS, seed].capacity_qps, 3)
                        search = Search(near_qps, family.setting.ttft_bound_s, STEP)
                    searches[family, variant, seed] = search
                    probe(runner, search, partial(family.case, variant, seed=seed))
        runner.run()
    return searches


def at_capacity(
    all_families: Sequence[Family], searches: Searches
) -> Iterator[tuple[Family, Variant, Case]]:
    """Every variant at the rate that the engines as they are just keep up with."""
    for family in all_families:
        for variant in family.variants:
            for seed in SEEDS:
                qps = round(searches[family, AS_IS, seed].capacity_qps, 3)
                yield family, variant, family.case(variant, qps, seed)


def measure(options: argparse.Namespace) -> Numbers:
    """Simulate what has not been simulated yet."""
    kept, wanted = Results(BENCH.kept), families()
    with progress() as bar:
        runs = len(SEEDS) * sum(len(f.variants) + PROBES * 2 for f in wanted)
        task = bar.add_task("runs", total=runs)
        runner = Runner(str(options.traces), kept, options.processes, lambda: bar.advance(task))
        searches = searched(wanted, runner)
        for _, _, case in at_capacity(wanted, searches):
            runner.ask(case)
        runner.run()
        bar.update(task, total=bar.tasks[task].completed)
    rows = []
    for family, variant, case in at_capacity(wanted, searches):
        found, search = kept[case], searches.get((family, variant, case.seed))
        rows.append(
            {
                "family": family.title,
                "variant": variant.title,
                "seed": case.seed,
                "qps": case.qps,
                "capacity_qps": round(search.capacity_qps, 3) if search else None,
                **{name: found[name] for name, _ in SHOWN},
                "preemptions_per_1000": 1000 * found["preemptions"] / found["requests"],
            }
        )
    return {
        "state_of_the_code": state_of_the_code(),
        "cpu_s": round(runner.cpu_s),
        "rows": rows,
    }


def tables(page: Numbers) -> Blocks:
    """A table for each family."""
    rows: list[Numbers] = page["rows"]
    lines = [
        made_by(page),
        f"*Laboratory.* Placed by `slo`; {len(SEEDS)} seeds. ShareGPT and Azure: 12 engines of "
        "A30/Llama-2-7b-hf, 48 seats, chunks of 512 tokens, 1,056 blocks; Mooncake, whose prompts "
        "share prefixes: 8 of H100/Llama-3.1-8B, 256 seats, chunks of 8,192, 24,881 blocks. "
        "Capacity: the highest rate, in requests a second, at which the P99 of TTFT is within 3 s "
        "(Mooncake: 8 s). The other columns are at the capacity of the engines as they are, seed "
        "by seed. Changes are geometric means of ratios to the same seed as it is, with their 95% "
        "interval (Student's t); ± is half of such an interval. Step times are those of 16-bit "
        "keys and values throughout.\n",
    ]
    for family in dict.fromkeys(row["family"] for row in rows):
        mine = [row for row in rows if row["family"] == family]
        header = (family, *(title for _, title in SHOWN), "preemptions per 1,000", "capacity")
        variants = dict.fromkeys(row["variant"] for row in mine)
        lines.append(markdown_table(header, [_row(variant, mine) for variant in variants]))
    return {"tables": "\n".join(lines)}


def _row(variant: str, rows: Sequence[Numbers]) -> tuple[str, ...]:
    mine, base = ([r for r in rows if r["variant"] == name] for name in (variant, AS_IS.title))
    preempted = f"{fmean(row['preemptions_per_1000'] for row in mine):.0f}"
    if variant == AS_IS.title:
        means = (f"{fmean(row[name] for row in mine):.2f} s" for name, _ in SHOWN)
        return (variant, *means, preempted, plus_minus([r["capacity_qps"] for r in mine], 1))

    def changed(name: str) -> str:
        return change([a[name] / b[name] for a, b in zip(mine, base, strict=True)])

    capacity = changed("capacity_qps") if mine[0]["capacity_qps"] is not None else ""
    return (variant, *(changed(name) for name, _ in SHOWN), preempted, capacity)
