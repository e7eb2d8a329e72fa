"""Many runs in several processes, with a progress bar on stderr."""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

from foretell.tools.progress import progress

__all__ = ["pool", "progress", "run_each"]


def pool(processes: int) -> ProcessPoolExecutor:
    """Spawned processes: forked ones would share their parent's threads and locks, badly."""
    return ProcessPoolExecutor(processes, mp_context=get_context("spawn"))


Case = TypeVar("Case")
Result = TypeVar("Result")


def run_each(run: Callable[[Case], Result], cases: Sequence[Case], processes: int) -> list[Result]:
    """The result of `run` for every case, in their order."""
    with pool(processes) as workers, progress() as bar:
        return list(bar.track(workers.map(run, cases), len(cases), description="runs"))
