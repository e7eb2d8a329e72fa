"""The table at the end of `foretell demo`."""

from collections.abc import Sequence
from statistics import median

from rich import box
from rich.table import Table

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
