"""A prior step time corrected by how long the first requests of a recorded run took.

A run of latencies holds no steps, so nothing can be learnt step by step as a predictor does it
beside a live engine. Instead the first requests are replayed, and five factors on the prior are
searched under which the twin's TTFT and TPOT come closest to theirs. Nothing else of the run is
used but the arrivals and lengths of requests that came before the last of the first had ended.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log

from foretell.latency.linear import StepTimeModel
from foretell.sim.recorded import Latency, RecordedRequest, ReplayConfig, replay

GROUPS = ((0,), (1, 3), (2,), (4,), (5,))
"""Coefficients of `latency.features.FEATURES` that share a factor: a step, prefill tokens, prefill
attention, decoding sequences, decode attention."""
PRIOR_ERROR = 0.5
"""Standard deviation of a factor on the prior, in natural logarithms."""
_NOISE = 0.1  # the same, of the latency of one request
_FIRST_STEP, _LAST_STEP = 0.25, 0.01
_MAX_REPLAYS = 150


@dataclass(frozen=True, slots=True)
class Calibration:
    """A corrected model."""

    model: StepTimeModel
    factors: tuple[float, ...]
    """The factors on the prior, one for each of `GROUPS`."""
    replays: int


def calibrate(
    requests: Sequence[RecordedRequest],
    config: ReplayConfig,
    prior: StepTimeModel,
    first: int,
) -> Calibration:
    """Fit `prior` to the `first` requests of `requests`, which are in order of arrival.

    A pattern search (Hooke and Jeeves, 1961): the loss has steps where a request falls into
    another batch, and no useful derivative. ValueError where the first requests have no latencies.
    """
    known = [request.actual for request in requests[:first]]
    if not known or any(latency is None for latency in known):
        raise ValueError("calibration needs the latencies of the first requests")
    actual = [latency for latency in known if latency is not None]
    ended_s = max(r.arrival_s + a.e2e_s for r, a in zip(requests, actual, strict=False))
    seen = [request for request in requests if request.arrival_s <= ended_s]

    def loss(logs: Sequence[float]) -> float:
        predicted = replay(seen, config, scaled(prior, logs), first=first)
        return _misfit(predicted, actual) + sum((x / PRIOR_ERROR) ** 2 for x in logs)

    best, replays = _search(loss, [0.0] * len(GROUPS))
    return Calibration(scaled(prior, best), tuple(exp(x) for x in best), replays)


def scaled(prior: StepTimeModel, logs: Sequence[float]) -> StepTimeModel:
    """`prior` with every group's coefficients times the exponential of its log."""
    packed = prior.packed()
    coefficients = packed.coefficients.copy()
    for group, value in zip(GROUPS, logs, strict=True):
        for index in group:
            coefficients[index] *= exp(value)
    return StepTimeModel(packed._replace(coefficients=coefficients))


def _misfit(predicted: Sequence[Latency], actual: Sequence[Latency]) -> float:
    """Sum of squared log errors of TTFT and TPOT in units of the noise of one request."""
    total = 0.0
    for p, a in zip(predicted, actual, strict=True):
        total += (log(p.ttft_s / a.ttft_s) / _NOISE) ** 2
        if a.output_tokens > 1:
            total += (log(p.tpot_s / a.tpot_s) / _NOISE) ** 2
    return total


def _search(
    loss: Callable[[Sequence[float]], float], start: list[float]
) -> tuple[list[float], int]:
    """The best point found, and how often `loss` was evaluated."""
    best, lowest, replays, step = start, loss(start), 1, _FIRST_STEP
    while step >= _LAST_STEP and replays < _MAX_REPLAYS:
        before = lowest
        for axis in range(len(best)):
            for change in (step, -step):
                point = [x + change * (i == axis) for i, x in enumerate(best)]
                value = loss(point)
                replays += 1
                if value < lowest:
                    best, lowest = point, value
                    break
        if lowest == before:
            step /= 2
    return best, replays
