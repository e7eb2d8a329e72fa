"""Percentiles, and means over seeds with their 95% confidence intervals."""

from collections.abc import Sequence
from math import exp, log, sqrt
from statistics import fmean, stdev

_T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""The 97.5% quantiles of Student's t with 1, 2, ... degrees of freedom."""


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half the width of its 95% confidence interval (Student's t) of two to ten values."""
    return fmean(values), _T_975[len(values) - 2] * stdev(values) / sqrt(len(values))


def percentile(values: Sequence[float], level: int) -> float:
    """The nearest-rank percentile of `values`, which must not be empty."""
    return sorted(values)[max(0, -(-len(values) * level // 100) - 1)]


def quantile(values: Sequence[float], level: float) -> float:
    """The `level` quantile, linear between the order statistics."""
    ordered = sorted(values)
    position = level * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def geometric_mean(ratios: Sequence[float]) -> float:
    return exp(fmean(map(log, ratios)))


def ratio_interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean of ratios, and the ends of its 95% confidence interval."""
    mean, half = interval([log(ratio) for ratio in ratios])
    return exp(mean), exp(mean - half), exp(mean + half)


def change(ratios: Sequence[float]) -> str:
    """The geometric mean of ratios less 1 with its interval, `+1.6% (+0.6 to +2.6)`."""
    mean, low, high = (100 * (value - 1) for value in ratio_interval(ratios))
    return f"{mean:+.1f}% ({low:+.1f} to {high:+.1f})"


def plus_minus(values: Sequence[float], digits: int) -> str:
    """Mean and half the width of its confidence interval, `1.2 ± 0.3`; one value alone as it is."""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    mean, half = interval(values)
    return f"{mean:.{digits}f} ± {half:.{digits}f}"
