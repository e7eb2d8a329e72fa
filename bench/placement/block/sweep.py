"""Which runs are made, and making them: a sweep, and searches that ask for one after another."""

from collections.abc import Iterator
from functools import partial

from bench.placement.block import settings as given
from bench.placement.block.capacity import Search
from bench.placement.block.runs import Results, Runner, probe
from bench.placement.block.settings import Case, Scheduler, Setting
from bench.placement.variants import READINGS
from bench.runs import progress

Searches = dict[tuple[str, str, int], Search]
"""Keys are the names of setting and scheduler, and the seed."""
_PROBES = 5  # a guess of how many a search takes, for the progress bar


def sweep_cases() -> Iterator[Case]:
    """Every scheduler of the paper at every rate."""
    for qps in given.SWEEP_QPS:
        for scheduler in given.SCHEDULERS:
            for seed in given.SWEEP_SEEDS:
                yield Case(given.DEFAULT, scheduler, float(qps), seed)


def reading_cases() -> Iterator[Case]:
    """Other readings of two of them, and Foretell's belief in estimates, at some rates."""
    others = [Scheduler(name, name) for name in READINGS]
    for qps in given.READING_QPS:
        for scheduler in (*others, given.BLOCK_STAR_SURVIVAL):
            for seed in given.SWEEP_SEEDS:
                yield Case(given.DEFAULT, scheduler, float(qps), seed)


def long_cases() -> Iterator[Case]:
    """Runs with as many requests as the paper sent."""
    for qps in given.LONG_QPS:
        for scheduler in (given.LLUMNIX, given.BLOCK):
            for seed in given.LONG_SEEDS:
                yield Case(given.LONG, scheduler, float(qps), seed)


def wanted_searches() -> list[tuple[Setting, Scheduler, int]]:
    """All searches for a capacity."""
    return [
        (setting, scheduler, seed)
        for setting in given.SETTINGS
        for scheduler in setting.searched
        for seed in setting.seeds
    ]


def run_all(traces: str, results: Results, processes: int) -> tuple[Searches, float]:
    """Make every run of the sweep and every search; also the CPU seconds of all of them."""
    searches = Searches()
    cases, wanted = [*sweep_cases(), *reading_cases(), *long_cases()], wanted_searches()
    with progress() as bar:
        task = bar.add_task("runs", total=len(cases) + _PROBES * len(wanted))
        runner = Runner(traces, results, processes, lambda: bar.advance(task))
        for case in cases:
            runner.ask(case)
        for setting, scheduler, seed in wanted:
            search = Search(setting.guess_qps, given.TTFT_BOUND_S)
            searches[setting.name, scheduler.title, seed] = search
            rank = 1 + given.SETTINGS.index(setting)
            probe(runner, search, partial(Case, setting, scheduler, seed=seed), rank)
        runner.run()
        bar.update(task, total=bar.tasks[task].completed)
    return searches, runner.cpu_s
