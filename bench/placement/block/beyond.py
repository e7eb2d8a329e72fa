"""Foretell's policies against Block's, where Block's bound is kept: settings, runs, tables."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.placement.block.capacity import Search
from bench.placement.block.runs import Result, Results, Runner, probe, state_of_the_code
from bench.placement.block.settings import (
    AZURE,
    NOISE_SIGMA,
    TTFT_BOUND_S,
    Case,
    Scheduler,
    Setting,
)
from bench.placement.block.sweep import Searches
from bench.report import Numbers, made_by, markdown_table
from bench.runs import progress
from bench.stats import change, geometric_mean, interval, plus_minus

Row = dict[str, Any]

MOONCAKE_BOUND_S = 8.0
MOONCAKE = "mooncake_conversation.t0-2100.jsonl.gz"
NOISE = f"noise:{NOISE_SIGMA}"
SEEDS = (1, 2, 3, 4, 5)
BLOCK = Scheduler("Block", "predicted_latency", knows_prefixes=False)
EXTERNALITY = Scheduler("externality", "externality")
TRUE_LENGTHS = (BLOCK, EXTERNALITY)
BLOCK_STAR = Scheduler("Block", "predicted_latency", NOISE, length_rule="block")
NOISY = (BLOCK_STAR, Scheduler("externality", "externality", NOISE))
WITH_PREFIXES = (BLOCK, Scheduler("predicted_latency", "predicted_latency"), EXTERNALITY)
SETTINGS = (
    Setting("ShareGPT, true lengths", 33.0, searched=TRUE_LENGTHS, seeds=SEEDS),
    Setting("ShareGPT, 24 seats", 28.5, seats=24, searched=TRUE_LENGTHS, seeds=SEEDS),
    Setting(
        "Azure 2023 conversations",
        16.5,
        trace=AZURE,
        windows=True,
        requests=1500,
        searched=TRUE_LENGTHS,
        seeds=SEEDS,
    ),
    Setting(
        "Mooncake, 8 H100",
        13.0,
        profile="H100/Llama-3.1-8B",
        seats=256,
        chunk=8192,
        blocks=24_881,
        trace=MOONCAKE,
        trace_format="mooncake",
        windows=True,
        instances=8,
        max_model_len=131_072,
        ttft_bound_s=MOONCAKE_BOUND_S,
        requests=1350,
        searched=WITH_PREFIXES,
        seeds=SEEDS,
    ),
    Setting(f"ShareGPT, {NOISE_SIGMA:.0%} noise", 32.5, searched=NOISY, seeds=SEEDS),
)
SHOWN = (
    ("ttft_mean_s", "mean TTFT"),
    ("ttft_p99_s", "P99 TTFT"),
    ("e2e_mean_s", "mean e2e"),
    ("e2e_p99_s", "P99 e2e"),
)


def results_of(traces: str, kept: Path, processes: int, settings: Sequence[Setting]) -> Numbers:
    """The capacities of all schedulers, and a run of each at Block's capacity."""
    results, searches = Results(kept), Searches()
    with progress() as bar:
        task = bar.add_task("runs", total=6 * len(_wanted(settings)))
        runner = Runner(traces, results, processes, lambda: bar.advance(task))
        for setting, scheduler, seed in _wanted(settings):
            search = Search(setting.guess_qps, setting.ttft_bound_s)
            searches[setting.name, scheduler.title, seed] = search
            rank = settings.index(setting)
            probe(runner, search, partial(Case, setting, scheduler, seed=seed), rank)
        runner.run()
        for case in _at_capacity(settings, searches):
            runner.ask(case)
        runner.run()
        bar.update(task, total=bar.tasks[task].completed)
    return {
        "state_of_the_code": state_of_the_code(),
        "cpu_s": round(runner.cpu_s),
        "rows": [
            _result(case, results[case], searches) for case in _at_capacity(settings, searches)
        ],
    }


def _wanted(settings: Iterable[Setting]) -> list[tuple[Setting, Scheduler, int]]:
    return [(s, scheduler, seed) for s in settings for scheduler in s.searched for seed in s.seeds]


def _at_capacity(settings: Iterable[Setting], searches: Searches) -> Iterator[Case]:
    """All schedulers at the rate at which Block just keeps the bound."""
    for setting, scheduler, seed in _wanted(settings):
        block = searches[setting.name, setting.searched[0].title, seed]
        yield Case(setting, scheduler, round(block.capacity_qps, 3), seed)


def _result(case: Case, found: Result, searches: Searches) -> Row:
    search = searches[case.setting.name, case.scheduler.title, case.seed]
    return {
        "setting": case.setting.name,
        "scheduler": case.scheduler.title,
        "seed": case.seed,
        "capacity_qps": round(search.capacity_qps, 3),
        "block_qps": case.qps,
        "probes": search.as_json(),
        **{name: found[name] for name, _ in SHOWN},
        "preemptions_per_1000": 1000 * found["preemptions"] / found["requests"],
    }


def markdown(page: Mapping[str, Any], settings: Sequence[Setting]) -> str:
    """A table for each setting that was run, and the mean over them."""
    rows: list[Row] = page["rows"]
    run = {row["setting"] for row in rows}
    settings = [setting for setting in settings if setting.name in run]
    lines = [
        made_by(page),
        "Capacity: the highest rate, in requests a second, at which the P99 of TTFT is within "
        f"{TTFT_BOUND_S:g} s ({MOONCAKE_BOUND_S:g} s with Mooncake's prompts, "
        "some of which alone take longer than 3 s). The other columns are at Block's capacity, "
        f"seed by seed, {len(SEEDS)} seeds. ± is half of a "
        "95% confidence interval (Student's t); "
        "changes are geometric means of ratios to Block's, taken seed by seed, with their "
        "interval.\n",
    ]
    for setting in settings:
        header = (setting.name, "capacity", "change", *(title for _, title in SHOWN))
        mine = [row for row in rows if row["setting"] == setting.name]
        table = [_row(scheduler, mine) for scheduler in setting.searched]
        lines.append(markdown_table((*header, "preemptions per 1,000"), table))
    lines.append(f"Capacity over Block's, mean over the settings: {_overall(rows, settings)}.")
    return "\n".join(lines)


def _row(scheduler: Scheduler, rows: Sequence[Row]) -> tuple[str, ...]:
    block = _of(rows, rows[0]["scheduler"])
    mine = _of(rows, scheduler.title)
    cells = [scheduler.title, plus_minus([row["capacity_qps"] for row in mine], 1)]
    is_block = scheduler.title == rows[0]["scheduler"]
    cells.append("" if is_block else change(_ratios(mine, block, "capacity_qps")))
    for name, _ in SHOWN:
        if is_block:
            cells.append(f"{interval([row[name] for row in mine])[0]:.2f} s")
        else:
            cells.append(change(_ratios(mine, block, name)))
    preempted = interval([row["preemptions_per_1000"] for row in mine])[0]
    return (*cells, f"{preempted:.0f}")


def _overall(rows: Sequence[Row], settings: Sequence[Setting]) -> str:
    """The mean over settings of each policy's gain in all of them."""
    texts = []
    for scheduler in settings[0].searched[1:]:
        gains = []
        for setting in settings:
            mine = [row for row in rows if row["setting"] == setting.name]
            block, own = _of(mine, mine[0]["scheduler"]), _of(mine, scheduler.title)
            ratios = _ratios(own, block, "capacity_qps")
            gains.append(geometric_mean(ratios) - 1)
        texts.append(f"{scheduler.title} {sum(gains) / len(gains):+.1%}")
    return ", ".join(texts)


def _of(rows: Iterable[Row], title: str) -> list[Row]:
    return sorted((r for r in rows if r["scheduler"] == title), key=lambda r: int(r["seed"]))


def _ratios(mine: Sequence[Row], block: Sequence[Row], name: str) -> list[float]:
    return [own[name] / theirs[name] for own, theirs in zip(mine, block, strict=True)]
