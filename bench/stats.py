"""Percentiles, and tables in Markdown."""

from collections.abc import Iterable, Sequence

LEVELS = (10, 50, 90, 99)


def percentile(values: Sequence[float], level: int) -> float:
    """The nearest-rank percentile of `values`, which must not be empty."""
    return sorted(values)[max(0, -(-len(values) * level // 100) - 1)]


def percentiles(values_s: Sequence[float], unit_s: float = 1e-3) -> dict[str, float]:
    """`LEVELS` of `values_s`, in units of `unit_s` seconds (milliseconds unless told)."""
    return {f"p{level}": round(percentile(values_s, level) / unit_s, 4) for level in LEVELS}


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table whose first column is text and whose others are numbers."""
    lines = [
        f"| {' | '.join(header)} |",
        f"|{'|'.join([':--', *['--:'] * (len(header) - 1)])}|",
        *(f"| {' | '.join(map(str, row))} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"
