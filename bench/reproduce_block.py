"""The evaluation of the Block paper (arXiv 2508.03611), repeated in the simulator.

    python -m bench.reproduce_block TRACES [--processes 2]

TRACES is a folder with `sharegpt_10k_llama2_lengths.csv` (columns `num_prefill_tokens` and
`num_decode_tokens`) and `azure2023_conv.t0-2100.csv.gz` (`t`, `in_tok`, `out_tok`). Finished runs
are kept in build/reproduce_block.jsonl: what was interrupted goes on, as long as the code is the
same. Writes bench/results/reproduce_block.json and .md, three pictures in docs/img, and what
docs/placement.md says of it.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.block import settings as given
from bench.block.capacity import Search
from bench.block.policies import READINGS
from bench.block.runs import ROOT, Results, run, state_of_the_code
from bench.block.settings import Case, Scheduler, Setting
from cli.bench.machine import describe_machine, describe_run

RESULTS = ROOT / "bench" / "results"
KEPT = ROOT / "build" / "reproduce_block.jsonl"
_PROBES = 5  # of a search, for the progress bar

Searches = dict[tuple[str, str, int], Search]
"""By setting, scheduler and seed."""


def sweep_cases() -> list[Case]:
    """Every scheduler at every rate; then the other readings of two of them."""
    readings = [Scheduler(name, name) for name in READINGS]
    return [
        Case(given.DEFAULT, scheduler, float(qps), seed)
        for rates, schedulers in (
            (given.SWEEP_QPS, given.SCHEDULERS),
            (given.READING_QPS, readings),
        )
        for qps in rates
        for scheduler in schedulers
        for seed in given.SWEEP_SEEDS
    ]


def searched_cases() -> list[tuple[Setting, Scheduler, int]]:
    """All searches for a capacity."""
    return [
        (setting, scheduler, seed)
        for setting in given.SETTINGS
        for scheduler in setting.searched
        for seed in setting.seeds
    ]


def run_all(traces: str, results: Results, processes: int) -> tuple[Searches, float]:
    """Every run of the sweep and every search to its end; and the CPU seconds of it, all runs'."""
    searches: Searches = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    progress = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True))
    cases, wanted = sweep_cases(), searched_cases()
    waiting: dict[Future[dict[str, Any]], tuple[Case, Callable[[dict[str, Any]], None]]] = {}
    # Spawned: a forked child would share the parent's threads and locks, badly.
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"))
    with progress, pool:
        task = progress.add_task("runs", total=len(cases) + _PROBES * len(wanted))

        def ask(case: Case, then: Callable[[dict[str, Any]], None]) -> None:
            known = results.get(case)
            if known is None:
                waiting[pool.submit(_timed, case, traces)] = case, then
            else:
                progress.advance(task)
                then(known)

        def probe(search: Search, setting: Setting, scheduler: Scheduler, seed: int) -> None:
            def then(result: dict[str, Any]) -> None:
                if search.learn(result["ttft_p99_s"]):
                    probe(search, setting, scheduler, seed)

            ask(Case(setting, scheduler, search.next_qps, seed), then)

        for case in cases:
            ask(case, lambda result: None)
        for setting, scheduler, seed in wanted:
            search = Search(setting.guess_qps, given.TTFT_BOUND_S)
            searches[setting.name, scheduler.title, seed] = search
            probe(search, setting, scheduler, seed)
        while waiting:
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                case, then = waiting.pop(future)
                results.put(case, future.result())
                progress.advance(task)
                then(future.result())
        progress.update(task, total=progress.tasks[0].completed)
    return searches, 0.0


def _timed(case: Case, traces: str) -> dict[str, Any]:
    start_s = time.process_time()
    result = run(case, traces)
    return {**result, "cpu_s": round(time.process_time() - start_s, 2)}


if __name__ == "__main__":
    import sys
    run_all(sys.argv[1], Results(KEPT), 1)
