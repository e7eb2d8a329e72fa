"""Convert length estimates to the rows of numbers that the kernel draws from.

`foretell.length` does not export this module, because it needs the compiled kernel.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from statistics import NormalDist
from typing import Literal

from foretell.kernel.lengths import LEVELS, WIDTH
from foretell.model import LengthEstimate

LengthRule = Literal["survival", "block"]
"""How an estimate is read: "survival" as a distribution, "block" as Block's point estimate."""

Row = tuple[float, ...]
"""`WIDTH` numbers: tokens at each of `LEVELS`, then the tail; see `foretell.kernel.lengths`."""

SPREAD_SIGMA = 0.4
"""Standard deviation of log(length / estimate) assumed of an estimate without quantiles."""

_HAZARDS = tuple(-math.log1p(-level) for level in LEVELS)
_FEWEST_QUANTILES = 2
_TAIL_FROM = 0.75


def knots(estimate: LengthEstimate, rule: LengthRule = "survival") -> Row:
    """The distribution that `estimate` stands for.

    It goes through the quantiles. Without them a prior is an exponential, and other point estimates
    get the spread `SPREAD_SIGMA`. A hint is exact. Under the rule "block" every estimate is exactly
    its `expected_tokens`; Block's rule applies to longer answers. `max_tokens` is not applied.
    """
    if rule == "block" or estimate.source == "hint":
        return certain(estimate.expected_tokens)
    if len(estimate.quantiles) >= _FEWEST_QUANTILES:
        return _through(estimate.quantiles, estimate.expected_tokens)
    if estimate.source == "prior":
        return exponential(estimate.expected_tokens)
    return tuple(estimate.expected_tokens * unit for unit in _UNIT_SPREAD)


def certain(tokens: float) -> Row:
    """The distribution of a known length."""
    return (tokens,) * len(LEVELS) + (0.0,)


def mean_of(row: Row) -> float:
    """The mean of a distribution."""
    *tokens, tail = row
    return _mean_within(_HAZARDS, tokens) + math.exp(-_HAZARDS[-1]) * tail


def exponential(mean_tokens: float) -> Row:
    """The exponential distribution: the same probability of an end after every token."""
    return (*(hazard * mean_tokens for hazard in _HAZARDS), mean_tokens)


def log_normal(mean_tokens: float, sigma: float) -> Row:
    """The log-normal distribution around a point estimate.

    `sigma` is the standard deviation of the logarithm. The mean is `mean_tokens` for `sigma` up to
    0.7; beyond, the bounds on the tail do not permit it.
    """
    normal = NormalDist(-sigma * sigma / 2, sigma)
    quantiles = [(level, mean_tokens * math.exp(normal.inv_cdf(level))) for level in LEVELS[1:]]
    return _through(quantiles, mean_tokens)


def _through(quantiles: Sequence[tuple[float, float]], mean_tokens: float) -> Row:
    """The distribution through `quantiles`, ascending in level, with this mean if possible.

    Below the first quantile the next segment is extended. Beyond the last one an exponential makes
    up the mean; its scale stays between half and all of the average growth of tokens per hazard
    from level `_TAIL_FROM` on, because a small error in the mean is a large one in the tail.
    """
    hazards = [0.0]
    tokens = [0.0]
    for level, length in quantiles:
        hazards.append(-math.log1p(-level))
        tokens.append(max(tokens[-1], length))
    slope = (tokens[2] - tokens[1]) / (hazards[2] - hazards[1])
    tokens[0] = max(0.0, tokens[1] - slope * hazards[1])
    since = min(bisect_left(hazards, -math.log1p(-_TAIL_FROM)), len(hazards) - 2)
    growth = (tokens[-1] - tokens[since]) / (hazards[-1] - hazards[since])
    needed = (mean_tokens - _mean_within(hazards, tokens)) * math.exp(hazards[-1])
    tail = min(growth, max(growth / 2, needed))
    return (*(_tokens_at(hazards, tokens, tail, hazard) for hazard in _HAZARDS), tail)


def _mean_within(hazards: Sequence[float], tokens: Sequence[float]) -> float:
    """E[min(length, last of `tokens`)]: the area under S, which is its fall / a constant hazard."""
    area = tokens[0]
    for i in range(len(tokens) - 1):
        fall = math.exp(-hazards[i]) - math.exp(-hazards[i + 1])
        area += fall * (tokens[i + 1] - tokens[i]) / (hazards[i + 1] - hazards[i])
    return area


def _tokens_at(hazards: list[float], tokens: list[float], tail: float, hazard: float) -> float:
    if hazard >= hazards[-1]:
        return tokens[-1] + (hazard - hazards[-1]) * tail
    i = max(1, bisect_left(hazards, hazard))
    short = (hazards[i] - hazard) / (hazards[i] - hazards[i - 1])
    # Exact at a given quantile, and never below the previous one by a rounding error.
    return max(tokens[i - 1], tokens[i] - short * (tokens[i] - tokens[i - 1]))


_UNIT_SPREAD = log_normal(1.0, SPREAD_SIGMA)
assert len(_UNIT_SPREAD) == WIDTH
