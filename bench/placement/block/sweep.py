"""Which runs are made, and making them: a sweep, and searches that ask for one after another."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from heapq import heappop, heappush
from multiprocessing import get_context
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.placement.block import settings as given
from bench.placement.block.capacity import Search
from bench.placement.block.policies import READINGS
from bench.placement.block.runs import Results, run
from bench.placement.block.settings import Case, Scheduler, Setting

Result = dict[str, Any]
Then = Callable[[Result], None]
Searches = dict[tuple[str, str, int], Search]
"""By the names of setting and scheduler, and the seed."""
_PROBES = 5  # of a search, for the progress bar


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
    """As many requests as the paper sent."""
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


class Runner:
    """Makes runs in other processes and hands their results on, to whom may ask for more."""

    def __init__(self, traces: str, results: Results, processes: int) -> None:
        self._traces, self._results, self._processes = traces, results, processes
        self._queue: list[tuple[int, int, Case, Then]] = []
        self._asked = 0
        self.cpu_s = 0.0
        """Of all runs, also of those that an earlier call made."""

    def ask(self, case: Case, then: Then, rank: int = 0) -> None:
        """`then` gets the result of `case`: at once if it is known; else the lowest rank first."""
        known = self._results.get(case)
        if known is None:
            self._asked += 1
            heappush(self._queue, (rank, self._asked, case, then))
        else:
            self._ended(known, then)

    def run(self) -> None:
        """Until nothing is left to run."""
        running: dict[Future[Result], tuple[Case, Then]] = {}
        # Spawned: a forked child would share the parent's threads and locks, badly.
        with ProcessPoolExecutor(self._processes, mp_context=get_context("spawn")) as pool:
            while self._queue or running:
                while self._queue and len(running) < self._processes:
                    _, _, case, then = heappop(self._queue)
                    running[pool.submit(timed_run, case, self._traces)] = case, then
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    case, then = running.pop(future)
                    self._results.put(case, future.result())
                    self._ended(future.result(), then)

    def _ended(self, result: Result, then: Then) -> None:
        self.cpu_s += result["cpu_s"]
        then(result)


def timed_run(case: Case, traces: str) -> Result:
    """`run`, and the CPU seconds it took."""
    start_s = time.process_time()
    result = run(case, traces)
    return {**result, "cpu_s": round(time.process_time() - start_s, 2)}


def run_all(traces: str, results: Results, processes: int) -> tuple[Searches, float]:
    """Every run of the sweep and every search to its end; and the CPU seconds of all of them."""
    runner, searches = Runner(traces, results, processes), Searches()
    cases, wanted = [*sweep_cases(), *reading_cases(), *long_cases()], wanted_searches()
    columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("runs", total=len(cases) + _PROBES * len(wanted))

        def ended(result: Result) -> None:
            progress.advance(task)

        def probe(search: Search, setting: Setting, scheduler: Scheduler, seed: int) -> None:
            def learnt(result: Result) -> None:
                progress.advance(task)
                if search.learn(result["ttft_p99_s"]):
                    probe(search, setting, scheduler, seed)

            case = Case(setting, scheduler, search.next_qps, seed)
            runner.ask(case, learnt, 1 + given.SETTINGS.index(setting))

        for case in cases:
            runner.ask(case, ended)
        for setting, scheduler, seed in wanted:
            search = Search(setting.guess_qps, given.TTFT_BOUND_S)
            searches[setting.name, scheduler.title, seed] = search
            probe(search, setting, scheduler, seed)
        runner.run()
        progress.update(task, total=progress.tasks[task].completed)
    return searches, runner.cpu_s
