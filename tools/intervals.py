"""Means over seeds with their 95% confidence intervals."""

from collections.abc import Sequence
from math import comb, exp, log, sqrt
from statistics import fmean, median, stdev

FEWEST_VALUES = 6
"""The fewest values between whose extremes the median is with a confidence of 95%."""
_T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""The 97.5% quantiles of Student's t with 1, 2, ... degrees of freedom."""
_MISSED = 0.05


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half the width of its 95% confidence interval (Student's t) of two to ten values."""
    return fmean(values), _T_975[len(values) - 2] * stdev(values) / sqrt(len(values))


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


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median of at least `FEWEST_VALUES`, and the ends of its confidence interval of at least
    95%: two of the values, whatever their distribution (the sign test turned round)."""
    ordered, count = sorted(values), len(values)
    out, tail = 0, 1.0 / 2**count  # the chance that at most `out` values are on one side
    while 2 * (more := tail + comb(count, out + 1) / 2**count) <= _MISSED:
        out, tail = out + 1, more
    return median(ordered), ordered[out], ordered[-1 - out]
