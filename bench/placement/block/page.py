"""What the page says of the results: tables, each mean with its 95% confidence interval."""

from collections.abc import Iterable, Sequence
from statistics import fmean

from bench.placement.block import settings as given
from bench.placement.block.runs import Result, Results
from bench.placement.block.settings import Case, Scheduler
from bench.placement.block.sweep import (
    Searches,
    long_cases,
    reading_cases,
    sweep_cases,
    wanted_searches,
)
from bench.placement.variants import READINGS
from bench.report import Blocks, Numbers, made_by, markdown_table
from bench.stats import change, plus_minus

Row = Result
_CURVES = ("ttft_curve_s", "e2e_curve_s", "memory")
SHOWN_QPS = 32
"""Rate at which the paper compares Block's TTFTs with Llumnix-'s."""
PAPER_TTFT = {"ttft_mean_s": -0.881, "ttft_p99_s": -0.786}
ARTIFACT_QPS = 30
ARTIFACT = {
    given.LLUMNIX.title: {"ttft_p99_s": 2.694, "e2e_mean_s": 10.938, "e2e_p99_s": 33.562},
    given.BLOCK_STAR.title: {"ttft_p99_s": 2.381, "e2e_mean_s": 10.923, "e2e_p99_s": 33.405},
}
"""Measured on 12 A30 by the authors: docs/RESULTS_SUMMARY.md of github AKafakA/Block@8247f20."""


def results_of(kept: Results, searches: Searches) -> Numbers:
    """All numbers of the page, as JSON."""
    sweep = [row_of(case, kept) for case in (*sweep_cases(), *reading_cases())]
    long = [row_of(case, kept) for case in long_cases()]
    capacities = []
    for setting, scheduler, seed in wanted_searches():
        search = searches[setting.name, scheduler.title, seed]
        probed = [kept[Case(setting, scheduler, qps, seed)] for qps in search.probes]
        preempted = [1000 * r["preemptions"] / r["requests"] for r in probed]
        capacities.append(
            {
                "setting": setting.name,
                "scheduler": scheduler.title,
                "seed": seed,
                "capacity_qps": round(search.capacity_qps, 3),
                "preemptions_per_1000": round(fmean(preempted), 1),
                "probes": search.as_json(),
            }
        )
    return {"sweep": sweep, "long": long, "capacities": capacities}


def row_of(case: Case, kept: Results) -> Row:
    """The numbers of one run, but for its curves."""
    result = kept[case]
    numbers = {name: value for name, value in result.items() if name not in _CURVES}
    named = {"scheduler": case.scheduler.title, "qps": case.qps, "seed": case.seed}
    arriving_s = case.setting.requests / case.qps
    spread = fmean(variance for at_s, _, variance in result["memory"] if at_s <= arriving_s)
    return {**named, **numbers, "free_blocks_spread": round(spread, 1)}


def tables(page: Numbers) -> Blocks:
    """All tables of the page, as one block."""
    sweep, capacities = page["sweep"], page["capacities"]
    seeds = ", ".join(map(str, given.SWEEP_SEEDS))
    text = "\n".join(
        [
            made_by(page),
            f"{given.INSTANCES} engines. Default: A30/Llama-2-7b-hf, {given.DEFAULT.seats} seats, "
            f"chunks of {given.DEFAULT.chunk} tokens, {given.DEFAULT.blocks:,} blocks, "
            f"{given.DEFAULT.requests:,} of the 10,000 ShareGPT lengths in random order, Poisson "
            "arrivals. A seed's requests are the same for all schedulers, and at another rate only "
            "closer together. ± is half of a 95% confidence interval (Student's t) over the seeds. "
            "Changes are geometric means of ratios taken seed by seed, with their interval.\n",
            "### Capacity\n",
            "The highest rate, in requests a second, at which the P99 of TTFT is at most "
            f"{given.TTFT_BOUND_S:g} s. Preemptions are those of all runs of a setting's searches, "
            "per 1,000 requests.\n",
            capacity_table(capacities),
            default_capacities(capacities),
            f"### TTFT at {SHOWN_QPS} requests a second\n",
            f"Seeds {seeds}.\n",
            ttft_table(sweep),
            "### By rate\n",
            *(by_rate(sweep, *what) for what in _BY_RATE),
            "### Beside the authors' own cluster\n",
            f"At {ARTIFACT_QPS} requests a second, seconds; the authors' in brackets.\n",
            artifact_table(sweep),
            "### With 10,000 requests\n",
            f"TTFT in seconds, means of seeds {' and '.join(map(str, given.LONG_SEEDS))}.\n",
            long_table(page["long"]),
            "### How far off the chosen instance's prediction was\n",
            error_table(sweep),
            "### Readings of INFaaS++ and Llumnix-\n",
            reading_table(sweep),
        ]
    )
    return {"tables": text}


_BY_RATE = (
    ("P99 TTFT, s", "ttft_p99_s", 2, 1.0),
    ("mean TTFT, s", "ttft_mean_s", 2, 1.0),
    ("P99 e2e latency, s", "e2e_p99_s", 1, 1.0),
    ("mean e2e latency, s", "e2e_mean_s", 1, 1.0),
    ("preemptions per 1,000 requests", "preemptions", 0, 1000 / given.DEFAULT.requests),
    ("free blocks, variance over the instances", "free_blocks_spread", 0, 1.0),
)


def paired_gain(capacities: Iterable[Row], setting: str, better: str, base: str) -> list[float]:
    """The capacity of `better` over that of `base`, for each seed."""
    found = {
        (row["scheduler"], row["seed"]): row["capacity_qps"]
        for row in capacities
        if row["setting"] == setting
    }
    seeds = sorted(seed for scheduler, seed in found if scheduler == base)
    return [found[better, seed] / found[base, seed] for seed in seeds]


def capacity_table(capacities: Sequence[Row]) -> str:
    """Block and Llumnix- in every setting."""
    rows = []
    for setting in given.SETTINGS:
        gain = paired_gain(capacities, setting.name, given.BLOCK.title, given.LLUMNIX.title)
        preempted = [r["preemptions_per_1000"] for r in capacities if r["setting"] == setting.name]
        rows.append(
            (
                setting.name,
                len(setting.seeds),
                *(
                    plus_minus(_capacities(capacities, setting.name, scheduler), 1)
                    for scheduler in (given.LLUMNIX, given.BLOCK)
                ),
                change(gain),
                "" if setting.paper_gain is None else f"{setting.paper_gain:+.1%}",
                f"{fmean(preempted):.0f}",
            )
        )
    compared = ("Llumnix-", "Block", "Block over Llumnix-", "the paper's")
    header = ("setting", "seeds", *compared, "preemptions")
    return markdown_table(header, rows)


def default_capacities(capacities: Sequence[Row]) -> str:
    """The capacities of all that were searched in the default setting."""
    rows = []
    for scheduler in given.DEFAULT.searched:
        name, base = given.DEFAULT.name, given.LLUMNIX.title
        gain = change(paired_gain(capacities, name, scheduler.title, base))
        found = plus_minus(_capacities(capacities, name, scheduler), 1)
        rows.append((scheduler.title, found, "" if scheduler is given.LLUMNIX else gain))
    return markdown_table(("default", "capacity", "over Llumnix-"), rows)


def _capacities(capacities: Iterable[Row], setting: str, scheduler: Scheduler) -> list[float]:
    return [
        row["capacity_qps"]
        for row in capacities
        if (row["setting"], row["scheduler"]) == (setting, scheduler.title)
    ]


def ttft_table(sweep: Sequence[Row]) -> str:
    """TTFTs, and their changes against Llumnix-, seed by seed."""
    rows = []
    for scheduler in (*given.SCHEDULERS, given.BLOCK_STAR_SURVIVAL):
        cells = [scheduler.title]
        for name in PAPER_TTFT:
            mine, base = (
                values(sweep, s.title, SHOWN_QPS, name) for s in (scheduler, given.LLUMNIX)
            )
            ratios = [ours / theirs for ours, theirs in zip(mine, base, strict=True)]
            compared = scheduler.policy == given.BLOCK.policy
            cells += [plus_minus(mine, 2), change(ratios) if compared else ""]
        rows.append(tuple(cells))
    mean, p99 = PAPER_TTFT.values()
    rows.append(("the paper's Block", "", f"{mean:+.1%}", "", f"{p99:+.1%}"))
    header = ("", "mean TTFT, s", "against Llumnix-", "P99 TTFT, s", "against Llumnix-")
    return markdown_table(header, rows)


def by_rate(sweep: Sequence[Row], title: str, name: str, digits: int, scale: float) -> str:
    """One quantity of every scheduler at every rate, mean of the seeds."""
    rows = [
        (
            scheduler.title,
            *(
                f"{fmean(values(sweep, scheduler.title, qps, name)) * scale:,.{digits}f}"
                for qps in given.SWEEP_QPS
            ),
        )
        for scheduler in given.SCHEDULERS
    ]
    return markdown_table((title, *map(str, given.SWEEP_QPS)), rows)


def artifact_table(sweep: Sequence[Row]) -> str:
    """Latencies beside those that the authors measured."""
    rows = [
        (
            title,
            *(
                f"{plus_minus(values(sweep, title, ARTIFACT_QPS, name), 2)} ({value:.2f})"
                for name, value in measured.items()
            ),
        )
        for title, measured in ARTIFACT.items()
    ]
    return markdown_table(("", "P99 TTFT", "mean e2e", "P99 e2e"), rows)


def long_table(long: Sequence[Row]) -> str:
    """Runs as long as the paper's."""
    rows = []
    for what, name in (("mean TTFT", "ttft_mean_s"), ("P99 TTFT", "ttft_p99_s")):
        found = [
            [values(long, scheduler.title, qps, name) for qps in given.LONG_QPS]
            for scheduler in (given.LLUMNIX, given.BLOCK)
        ]
        rows += [
            (f"{what}, {scheduler.title}", *(f"{fmean(cell):.2f}" for cell in cells))
            for scheduler, cells in zip((given.LLUMNIX, given.BLOCK), found, strict=True)
        ]
        changes = (fmean(ours) / fmean(theirs) - 1 for theirs, ours in zip(*found, strict=True))
        rows.append(("change", *(f"{ratio:+.0%}" for ratio in changes)))
    return markdown_table(("requests a second", *map(str, given.LONG_QPS)), rows)


def error_table(sweep: Sequence[Row]) -> str:
    """Mean absolute relative errors."""
    rows = [
        (
            f"{title}, {scheduler.title}",
            *(f"{fmean(values(sweep, scheduler.title, q, name)):.1%}" for q in given.SWEEP_QPS),
        )
        for title, name in (("e2e", "e2e_mape"), ("TTFT", "ttft_mape"))
        for scheduler in (given.BLOCK, given.BLOCK_STAR)
    ]
    header = ("mean abs(predicted - actual) / actual", *map(str, given.SWEEP_QPS))
    return markdown_table(header, rows)


def reading_table(sweep: Sequence[Row]) -> str:
    """Readings of INFaaS++ and Llumnix-, between random and Block."""
    shown: list[tuple[str, str]] = [(given.RANDOM.title, given.RANDOM.title)]
    for policy, scheduler in (("infaas", given.INFAAS), ("llumnix_minus", given.LLUMNIX)):
        shown += [(name, name) for name in READINGS if name.startswith(policy)]
        shown.append((f"{policy}, free/running (chosen)", scheduler.title))
    shown.append((given.BLOCK.title, given.BLOCK.title))
    columns = [(qps, name) for qps in given.READING_QPS for name in ("ttft_mean_s", "ttft_p99_s")]
    header = [f"{'mean' if 'mean' in name else 'P99'} TTFT at {qps}, s" for qps, name in columns]
    rows = [
        (title, *(plus_minus(values(sweep, key, qps, name), 2) for qps, name in columns))
        for title, key in shown
    ]
    return markdown_table(("reading", *header), rows)


def values(sweep: Iterable[Row], scheduler: str, qps: float, name: str) -> list[float]:
    """One quantity of all seeds, in their order."""
    found = [row for row in sweep if (row["scheduler"], row["qps"]) == (scheduler, qps)]
    return [row[name] for row in sorted(found, key=lambda row: int(row["seed"]))]
