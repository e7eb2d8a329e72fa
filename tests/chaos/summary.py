"""What the clients of each case received, as rows of a table."""

from dataclasses import dataclass

import pytest
from rich.console import Console
from rich.table import Table

from tests.chaos.clients import Asked, Seen


@dataclass(frozen=True, slots=True)
class Row:
    """One case."""

    case: str
    requests: int
    hits: int
    """Requests that met the fault."""
    lost: int
    """Requests without a complete answer."""
    duplicated: int
    """Requests that got something twice: an end, or tokens."""
    corrupted: int
    """Requests whose text differs from that of an undisturbed run."""
    asked_again: int
    """Clients that had to send their request again because the connection broke."""
    median_s: float
    longest_s: float
    longest_pause_s: float

    @property
    def flawless(self) -> bool:
        """Whether nothing was lost, duplicated or corrupted."""
        return not (self.lost or self.duplicated or self.corrupted)


ROWS: pytest.StashKey[list[Row]] = pytest.StashKey()
"""The rows of the test run."""


def judge(
    case: str, hits: int, asked: list[Asked], seen: list[Seen], truth: list[str] | None
) -> Row:
    """The row of a case; `truth` has the texts of an undisturbed run, and is None for that run."""
    whole = [(a, s) for a, s in zip(asked, seen, strict=True) if not s.error]
    known = [s.text for s in seen] if truth is None else truth
    texts = [known[number % len(known)] for number in range(len(seen))]
    seconds = sorted(s.seconds for s in seen)
    return Row(
        case,
        len(seen),
        hits,
        lost=sum(bool(s.error) for s in seen) + sum(not s.ends for _, s in whole),
        duplicated=sum(_has_twice(a, s) for a, s in whole),
        corrupted=sum(s.text != text for s, text in zip(seen, texts, strict=True) if not s.error),
        asked_again=sum(s.tries > 1 for s in seen),
        median_s=seconds[len(seconds) // 2],
        longest_s=seconds[-1],
        longest_pause_s=max(s.pause_s for s in seen),
    )


def _has_twice(asked: Asked, seen: Seen) -> bool:
    ends = ["length", "done"] if asked.streams else ["length"]
    one_id, tokens = len(seen.ids) == 1, seen.completion_tokens == asked.body["max_tokens"]
    return bool(seen.ends) and not (seen.ends == ends and one_id and tokens)


def show(rows: list[Row], console: Console) -> None:
    """Print the table."""
    table = Table(title="What clients saw: emulated engines, laboratory, one seed")
    table.add_column("fault")
    for name in ("requests", "hit", "lost", "twice", "corrupted", "asked again"):
        table.add_column(name, justify="right")
    for name in ("median", "longest", "longest pause"):
        table.add_column(f"{name} (s)", justify="right")
    for row in rows:
        counts = (row.requests, row.hits, row.lost, row.duplicated, row.corrupted, row.asked_again)
        times = (row.median_s, row.longest_s, row.longest_pause_s)
        style = "" if row.flawless else "bold red"
        cells = [*map(str, counts), *(f"{each:.2f}" for each in times)]
        table.add_row(row.case, *cells, style=style)
    console.print(table)
