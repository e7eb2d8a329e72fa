"""Estimates of output lengths for simulations, without a tagger."""

from collections.abc import Callable, Sequence
from math import exp
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from foretell.model import LengthEstimate
from foretell.workload.arrivals import Draws
from foretell.workload.residuals import shipped_residuals
from foretell.workload.stream import Arrival

_LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
_NEAREST, _ALIKE = 50, 12
"""The answers nearest in rank, and those among them whose prompts are nearest in rank, too: the
estimate is that of one of the latter."""
_MEAN_LEVELS = (np.arange(64) + 0.5) / 64
"""Levels over which the mean of a distribution is taken."""


def stated_length(arrival: Arrival) -> LengthEstimate:
    """The estimate that the trace holds; ValueError if it holds none."""
    if arrival.length is None:
        raise ValueError("the trace does not tell what was believed of output lengths")
    return arrival.length


def noisy_length(sigma: float, draws: Draws) -> Callable[[Arrival], LengthEstimate]:
    """Estimates whose medians are true lengths times exp(N(0, sigma)), drawn once per arrival.

    The logarithm of the length, given the estimate, is taken as normal around the median's with
    deviation `sigma`: the right distribution if all log lengths are equally likely beforehand.
    """
    if sigma <= 0:
        raise ValueError(f"sigma must be positive, got {sigma}")
    factors = [(level, exp(NormalDist(0.0, sigma).inv_cdf(level))) for level in _LEVELS]
    mean = exp(sigma * sigma / 2)

    def estimate(arrival: Arrival) -> LengthEstimate:
        median = arrival.output_tokens * exp(draws.gauss(0.0, sigma))
        quantiles = tuple((level, median * factor) for level, factor in factors)
        return LengthEstimate(median * mean, quantiles, source="model")

    return estimate


def residual_length(trace: Sequence[Arrival], draws: Draws) -> Callable[[Arrival], LengthEstimate]:
    """Estimates such as the shipped length model would make for the arrivals of a trace.

    An arrival takes the estimate of a held-out answer (`foretell.workload.residuals`). Its length
    and its prompt have about the same ranks among the held-out ones as the arrival's have in
    `trace`. Each quantile becomes the length of its rank in `trace`. So estimates rank requests as
    well as the model does, and their intervals hold as many lengths, whatever the lengths of
    `trace`. Errors are as large as the model's at prompts of such a rank. Whether a trace's prompts
    tell as much about their answers as those of the held-out conversations is not known.
    """
    if not trace:
        raise ValueError("estimates by the tagger's residuals need the trace's lengths")
    residuals = shipped_residuals()
    ordered = np.sort(np.array([a.output_tokens for a in trace], dtype=np.float64))
    prompts = np.sort(np.array([a.prompt_tokens for a in trace], dtype=np.float64))
    levels = np.array((0.0, *residuals.levels, 1.0))
    beyond = (levels[-1] - levels[-2]) / (levels[-2] - levels[-3])
    own, asked, believed = residuals.ranks, residuals.prompts, residuals.quantiles

    def rank_of(tokens: int, among: NDArray[np.float64]) -> float:
        first, last = (int(np.searchsorted(among, tokens, side)) for side in ("left", "right"))
        return (first + draws.random() * (last - first)) / len(among)

    def length_at(ranks: NDArray[np.float64]) -> list[float]:
        places = np.ceil(ranks * len(ordered)).astype(np.int64) - 1
        found: list[float] = ordered[np.clip(places, 0, len(ordered) - 1)].tolist()
        return found

    def estimate(arrival: Arrival) -> LengthEstimate:
        rank = rank_of(arrival.output_tokens, ordered)
        nearest = int(np.searchsorted(own, rank)) - _NEAREST // 2
        nearest = min(max(0, nearest), len(own) - _NEAREST)
        near = slice(nearest, nearest + _NEAREST)
        unlike = np.abs(asked[near] - rank_of(arrival.prompt_tokens, prompts))
        chosen = nearest + int(np.argsort(unlike)[int(draws.random() * _ALIKE)])
        ranks = np.clip(believed[chosen] + (rank - own[chosen]), 0.0, 1.0)
        # Beyond the last quantile the slope is that between the last two.
        most = min(1.0, ranks[-1] + (ranks[-1] - ranks[-2]) * beyond)
        curve = np.interp(_MEAN_LEVELS, levels, np.concatenate(([0.0], ranks, [most])))
        return LengthEstimate(
            float(np.mean(length_at(curve))),
            tuple(zip(residuals.levels, length_at(ranks), strict=True)),
            source="model",
        )

    return estimate
