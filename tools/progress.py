"""Progress bars on stderr, the same for all commands and benchmarks, and parallel runs."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Asked = TypeVar("Asked")
Result = TypeVar("Result")
Show = Callable[[str, int, int], None]
"""Called with a description, the amount done, and the total."""


def progress() -> Progress:
    """Bars with the amount done, the elapsed time and the remaining time."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, *times, console=Console(stderr=True))


@contextmanager
def showing(first: str) -> Iterator[Show]:
    """Show one bar, with the description `first` until it is updated."""
    with progress() as bar:
        task = bar.add_task(first, total=None)

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield show


def side_by_side(
    work: Callable[[Asked], Result], asked: Sequence[Asked], processes: int, what: str
) -> Iterator[Result]:
    """The result of `work` for each of `asked`, in their order, by several processes."""
    # Spawned: forked processes would inherit locks that other threads of the parent hold.
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool, progress() as bar:
        yield from bar.track(pool.map(work, asked), len(asked), description=what)
