"""Percentiles, intervals, and tables in Markdown."""

import re
from collections.abc import Iterable, Sequence
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

LEVELS = (10, 50, 90, 99)
_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""0.975 quantiles of Student's t with 1, 2, … degrees of freedom."""


def percentile(values: Sequence[float], level: int) -> float:
    """The nearest-rank percentile of `values`, which must not be empty."""
    return sorted(values)[max(0, -(-len(values) * level // 100) - 1)]


def percentiles(values_s: Sequence[float], unit_s: float = 1e-3) -> dict[str, float]:
    """`LEVELS` of `values_s`, in units of `unit_s` seconds (milliseconds unless told)."""
    return {f"p{level}": round(percentile(values_s, level) / unit_s, 4) for level in LEVELS}


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half the width of its 95% t-interval; of two to ten values."""
    return fmean(values), _T_95[len(values) - 2] * stdev(values) / sqrt(len(values))


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table whose first column is text and whose others are numbers."""
    lines = [
        f"| {' | '.join(header)} |",
        f"|{'|'.join([':--', *['--:'] * (len(header) - 1)])}|",
        *(f"| {' | '.join(map(str, row))} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def write_into(page: Path, block: str, text: str) -> None:
    """Replace what stands between `<!-- block -->` and `<!-- end of block -->` on a page."""
    begin, end = f"<!-- {block} -->", f"<!-- end of {block} -->"
    written = page.read_text(encoding="utf-8")
    found = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    assert len(found.findall(written)) == 1, f"{page}: no block {block}"
    filled = f"{begin}\n\n{text.strip()}\n\n{end}"
    page.write_text(found.sub(lambda _: filled, written), encoding="utf-8")
