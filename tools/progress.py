"""Progress bars on stderr, which look alike in all commands and benchmarks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Show = Callable[[str, int, int], None]
"""Called with what is going on, how much of it is done, and of how much."""


def progress() -> Progress:
    """Bars that count what has been done, the time it took and the time that is left."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, *times, console=Console(stderr=True))


@contextmanager
def showing(first: str) -> Iterator[Show]:
    """One bar, which says `first` until there is more to say."""
    with progress() as bar:
        task = bar.add_task(first, total=None)

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield show
