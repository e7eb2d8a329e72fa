"""What is believed of output lengths, where no tagger is at hand."""

from collections.abc import Callable
from math import exp
from statistics import NormalDist

from foretell.model import LengthEstimate
from foretell.workload.arrivals import Draws
from foretell.workload.stream import Arrival

_LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)


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
