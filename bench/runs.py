"""Many runs in several processes, with a progress bar on stderr."""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)


def progress() -> Progress:
    """A progress bar on stderr that counts what has been done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True))


def pool(processes: int) -> ProcessPoolExecutor:
    """Spawned processes: forked ones would share their parent's threads and locks, badly."""
    return ProcessPoolExecutor(processes, mp_context=get_context("spawn"))


Case = TypeVar("Case")
Result = TypeVar("Result")


def run_each(run: Callable[[Case], Result], cases: Sequence[Case], processes: int) -> list[Result]:
    """The result of `run` for every case, in their order."""
    with pool(processes) as workers, progress() as bar:
        return list(bar.track(workers.map(run, cases), len(cases), description="runs"))
