"""What the representation of lengths was chosen by, on requests that no result is evaluated on."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from bench.length.scores import LEVELS as SCORED
from bench.length.scores import Score, predict, score
from bench.length.workloads import Floats, Live, Requests, Workload
from foretell.kernel.lengths import LEVELS, conditional_mean
from foretell.length.distribution import knots, log_normal
from foretell.model import LengthEstimate

SIGMAS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0)
NOISE_SIGMA = 0.3
_SIX = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
_SEVEN = (*_SIX, 0.99)
_HAZARD = -np.log1p(-np.array(LEVELS))
_FOR_THE_MEAN = (np.arange(50) + 0.5) / 50
_GROUPS = 50
_APART = 1e-9  # tokens, between knots that would be equal

Quantile = Callable[[float], Floats]
"""From a level to the total tokens, (n,), of live requests."""


class Axes(NamedTuple):
    """What is linear between knots: a function of tokens in a function of the hazard."""

    of_tokens: Callable[[Floats], Floats]
    to_tokens: Callable[[Floats], Floats]
    of_hazard: Callable[[Floats], Floats]
    to_hazard: Callable[[Floats], Floats]


def _same(x: Floats) -> Floats:
    return x


_AXES = {
    "tokens in the hazard": Axes(_same, _same, _same, _same),
    "tokens in the probability": Axes(
        _same, _same, lambda h: -np.expm1(-h), lambda p: -np.log1p(-p)
    ),
    "log tokens in the hazard": Axes(np.log1p, np.expm1, _same, _same),
}


def noisy(requests: Requests, rng: np.random.Generator) -> Floats:
    """Estimates with log-normal errors of `NOISE_SIGMA`, right on average for every length."""
    errors = rng.normal(-(NOISE_SIGMA**2) / 2, NOISE_SIGMA, len(requests))
    return np.asarray(requests.output * np.exp(errors))


def calibrated(estimates: Floats, workload: Workload, rng: np.random.Generator) -> Floats:
    """`noisy` estimates as a trained model would give them: the mean length at each.

    Read off groups of equal size of the learnt part, with errors of its own.
    """
    learnt = noisy(workload.learnt, rng)
    groups = np.array_split(np.argsort(learnt), _GROUPS)
    at = [learnt[group].mean() for group in groups]
    means = [workload.learnt.output[group].mean() for group in groups]
    return np.asarray(np.interp(estimates, at, means))


def by_interpolation(workload: Workload, live: Live) -> dict[str, Score]:
    """One distribution for all requests: every observation, and three ways to join its knots."""
    sample = np.sort(workload.learnt.output).astype(np.float64)
    found = {"every observation": _score_by(_of_sample(sample, live), live)}
    for name, axes in _AXES.items():
        found[name] = _score_by(_of_knots(sample, axes, live), live)
    return found


def by_tail(workload: Workload, live: Live) -> dict[str, Score]:
    """The same distribution as an estimate: up to which quantile, and what follows it."""
    sample = workload.learnt.output.astype(np.float64)
    mean = float(sample.mean())
    found = {}
    for levels in (_SIX, _SEVEN):
        values = np.quantile(sample, levels, method="inverted_cdf")
        quantiles = tuple(zip(levels, map(float, values), strict=True))
        bounded = np.array(knots(LengthEstimate(mean, quantiles, "history")))
        missing = mean - conditional_mean(bounded, 0.0)
        tails = {
            "makes up the mean": bounded[-1] + missing / (1 - levels[-1]),
            "average growth": knots(LengthEstimate(np.inf, quantiles, "history"))[-1],
            "makes up the mean within bounds": bounded[-1],
        }
        for name, tail in tails.items():
            row = np.array([*bounded[:-1], tail])
            row[-2] = values[-1] + tail * (_HAZARD[-1] + np.log1p(-levels[-1]))
            rows = np.tile(row, (len(live.generated), 1))
            found[f"up to {levels[-1]:g}, {name}"] = score(*predict(rows, live.generated), live)
    return found


def by_sigma(estimates: Floats, live: Live) -> dict[str, Score]:
    """Point estimates with the spread of each of `SIGMAS`."""
    units = {sigma: np.array(log_normal(1.0, sigma)) for sigma in SIGMAS}
    return {
        f"{sigma:g}": score(*predict(estimates[:, None] * unit, live.generated), live)
        for sigma, unit in units.items()
    }


def _score_by(quantile: Quantile, live: Live) -> Score:
    totals = np.stack([quantile(level) for level in SCORED], axis=1)
    means = np.mean([quantile(float(level)) for level in _FOR_THE_MEAN], axis=0)
    return score(totals, means, live)


def _of_sample(ascending: Floats, live: Live) -> Quantile:
    """The lengths in the sample beyond `generated`; Block's rule beyond all."""
    gone = np.searchsorted(ascending, live.generated, side="right")
    left = len(ascending) - gone

    def quantile(level: float) -> Floats:
        place = gone + np.ceil(level * left).astype(np.int64) - 1
        found = ascending[np.minimum(place, len(ascending) - 1)]
        return np.where(left > 0, found, live.generated + 10.0)

    return quantile


def _of_knots(sample: Floats, axes: Axes, live: Live) -> Quantile:
    """The kernel's levels of the sample joined along `axes`, then an exponential."""
    at = np.quantile(sample, LEVELS, method="inverted_cdf") + _APART * np.arange(len(LEVELS))
    last = at[-1]
    tail = (sample[sample > last] - last).mean()
    x, y = axes.of_tokens(at), axes.of_hazard(_HAZARD)
    inside = np.interp(axes.of_tokens(np.minimum(live.generated, last)), x, y)
    hazard = axes.to_hazard(inside) + np.maximum(0.0, live.generated - last) / tail

    def quantile(level: float) -> Floats:
        reached = hazard - np.log1p(-level)
        within = axes.to_tokens(np.interp(axes.of_hazard(np.minimum(reached, _HAZARD[-1])), y, x))
        total = within + np.maximum(0.0, reached - _HAZARD[-1]) * tail
        return np.asarray(np.maximum(live.generated + 1, total))

    return quantile
