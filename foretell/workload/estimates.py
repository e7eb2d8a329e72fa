"""What is believed of output lengths, where no tagger is at hand."""

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
"""Answers of about the same rank, and those among them whose prompts' ranks are nearest, too: one
of these lends its estimate."""
_MEAN_LEVELS = (np.arange(64) + 0.5) / 64
"""Levels over which the mean of a distribution is taken."""


def told_length(arrival: Arrival) -> LengthEstimate:
    """What the trace says was believed; ValueError where it does not say."""
    if arrival.length is None:
        raise ValueError("the trace does not tell what was believed of output lengths")
    return arrival.length


def noisy_length(sigma: float, draws: Draws) -> Callable[[Arrival], LengthEstimate]:
    """True lengths times exp(N(0, sigma)), each drawn once, with an honest distribution around.

    The logarithm of the length, given the estimate, is taken as normal around the estimate's with
    `sigma`: what one would believe if all lengths were equally likely before.
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
    """What the shipped length model would say of the arrivals of a trace.

    An arrival takes the estimate of a held-out answer whose length has about the same rank among
    its own as the arrival's has in `trace` (`foretell.workload.residuals`), and whose prompt has,
    too; each quantile as the length of that rank here. So estimates rank requests as well as the
    model does, and their intervals hold as many lengths, whatever the lengths of `trace`. Errors
    are as large as those at prompts that are as long among others; whether a trace's prompts tell
    as much of their answers as those of the held-out conversations is not known.
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
        # Beyond the last quantile as between the last two.
        most = min(1.0, ranks[-1] + (ranks[-1] - ranks[-2]) * beyond)
        curve = np.interp(_MEAN_LEVELS, levels, np.concatenate(([0.0], ranks, [most])))
        return LengthEstimate(
            float(np.mean(length_at(curve))),
            tuple(zip(residuals.levels, length_at(ranks), strict=True)),
            source="model",
        )

    return estimate
