"""Percentiles and confidence intervals."""

from collections.abc import Sequence

from foretell.tools.intervals import change, geometric_mean, interval, percentile, ratio_interval

__all__ = [
    "change",
    "geometric_mean",
    "interval",
    "percentile",
    "percentiles",
    "plus_minus",
    "ratio_interval",
]

LEVELS = (10, 50, 90, 99)


def percentiles(values_s: Sequence[float], unit_s: float = 1e-3) -> dict[str, float]:
    """`LEVELS` of `values_s`, in units of `unit_s` seconds, which is a millisecond by default."""
    return {f"p{level}": round(percentile(values_s, level) / unit_s, 4) for level in LEVELS}


def plus_minus(values: Sequence[float], digits: int) -> str:
    """Mean and half the width of its confidence interval, `1.2 ± 0.3`."""
    mean, half = interval(values)
    return f"{mean:.{digits}f} ± {half:.{digits}f}"
