"""The tables and the plot at the end of `foretell demo`."""

from collections.abc import Sequence
from math import log
from statistics import fmean, median

from rich import box
from rich.table import Table
from rich.text import Text

from foretell.tools.demo.load import Answered
from foretell.tools.intervals import quantile
from foretell.tools.view.cluster import pairs

Pair = tuple[float, float]
"""Predicted and actual seconds."""


def met(answered: Sequence[Answered]) -> dict[str, list[Pair]]:
    """What was predicted beside what happened, by latency."""
    return {
        "TTFT": pairs([a.predicted_ttft_s or 0.0 for a in answered], [a.ttft_s for a in answered]),
        "e2e": pairs([a.predicted_e2e_s or 0.0 for a in answered], [a.e2e_s for a in answered]),
    }


def errors(found: dict[str, list[Pair]]) -> Table:
    """Medians of both sides, and how far predictions were off."""
    table = Table(box=box.SIMPLE_HEAD, title="Predicted and actual", title_justify="left")
    table.add_column("latency")
    for column in ("predicted, median", "actual, median", "off by, median", "off by, P90"):
        table.add_column(column, justify="right")
    for name, each in found.items():
        off = [abs(predicted / actual - 1) for predicted, actual in each]
        table.add_row(
            name,
            f"{median(p for p, _ in each):.2f} s",
            f"{median(a for _, a in each):.2f} s",
            f"{median(off):.0%}",
            f"{quantile(off, 0.9):.0%}",
        )
    return table


def policies(rows: dict[str, Sequence[Pair]]) -> Table:
    """TTFT and e2e of the same chats, placed in several ways; each pair is (TTFT, e2e)."""
    table = Table(box=box.SIMPLE_HEAD, title="The same chats, placed", title_justify="left")
    table.add_column("by")
    for column in ("TTFT, mean", "P99", "e2e, mean", "P99"):
        table.add_column(column, justify="right")
    for name, each in rows.items():
        cells = []
        for values in ([ttft for ttft, _ in each], [e2e for _, e2e in each]):
            cells += [f"{fmean(values):.2f} s", f"{quantile(values, 0.99):.2f} s"]
        table.add_row(name, *cells)
    return table


def scatter(points: Sequence[Pair], columns: int, lines: int = 16) -> Text:
    """Predicted (across) and actual (up) seconds, both logarithmic; on the dots they agree."""
    least, most = (choose(each for point in points for each in point) for choose in (min, max))
    span = log(most / least) or 1.0

    def at(seconds: float, cells: int) -> int:
        return min(cells - 1, int(log(seconds / least) / span * cells))

    grid = [[" "] * columns for _ in range(lines)]
    for column in range(columns):
        grid[int((column + 0.5) / columns * lines)][column] = "·"
    for predicted, actual in points:
        grid[at(actual, lines)][at(predicted, columns)] = "●"
    low, high = f"{least:.2g} s", f"{most:.2g} s"
    rows = ["│" + "".join(row) for row in reversed(grid)]
    label = low + "predicted".center(columns - len(low) - len(high) + 1) + high
    return Text("\n".join((f"{high}, actual", *rows, "└" + "─" * columns, label)))
