"""A step-time model corrected by how long the first requests of a recorded run took.

A recording of latencies has no steps, so step times cannot be learnt as a predictor learns them
beside a live engine. Instead the first requests are replayed, and the unknowns are searched that
bring the twin's TTFT and TPOT closest to the recorded ones: five factors on a datasheet's prior, or
the host's time beside measured tables, which hold only the GPU's. Of the rest of the run, only the
arrivals and lengths of requests that came before the last of the first had ended are used.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from foretell.latency.features import FEATURES
from foretell.latency.linear import StepTimeModel
from tests.sim.recorded import Latency, RecordedRequest, ReplayConfig, replay

Vector = NDArray[np.float64]

GROUPS = ((0,), (1, 3), (2,), (4,), (5,))
"""Coefficients of `latency.features.FEATURES` that share a factor: a step, prefill tokens, prefill
attention, decoding sequences, decode attention."""
PRIOR_ERROR = 0.5
"""Standard deviation of a factor on the prior, in natural logarithms."""
HOST_STEP_S, HOST_SEQUENCE_S = 1e-3, 10e-6
"""Seconds that an engine's host usually adds, at most, to a step and for each of its sequences
(asynchronous scheduling hides the rest): the standard deviations of the unknowns."""
TTFT_NOISE = 0.3
"""Standard deviation of the log error of a TTFT, which jumps by a step or a queue's turn."""
TOKEN_NOISE = 0.1
"""Standard deviation of the log error of one token's time; a TPOT is a mean over tokens."""
_TRIALS = 12
_CHANGE = 0.2  # in standard deviations of the unknowns, small enough for the replay to be linear


@dataclass(frozen=True, slots=True)
class Calibration:
    """A corrected model."""

    model: StepTimeModel
    factors: tuple[float, ...]
    """The factors on the prior, one for each of `GROUPS`."""


@dataclass(frozen=True, slots=True)
class HostTime:
    """Time that the host adds to the GPU's."""

    step_s: float = 0.0
    """Seconds added to every step."""
    sequence_s: float = 0.0
    """Seconds added for every sequence in a step."""

    def added_to(self, model: StepTimeModel) -> StepTimeModel:
        """The model with these times added to its steps."""
        packed = model.packed()
        coefficients = packed.coefficients.copy()
        coefficients[FEATURES.index("step")] += self.step_s
        for name in ("prefill_seqs", "decode_seqs"):
            coefficients[FEATURES.index(name)] += self.sequence_s
        return StepTimeModel(packed._replace(coefficients=coefficients))


def calibrate(
    requests: Sequence[RecordedRequest],
    config: ReplayConfig,
    prior: StepTimeModel,
    first: int,
) -> Calibration:
    """Fit `prior` to the `first` requests of `requests`, which are in order of arrival.

    ValueError if these have no latencies.
    """
    errors = _errors(requests, config, first)
    found = _fitted(lambda s: errors(scaled(prior, s * PRIOR_ERROR)), np.zeros(len(GROUPS)))
    logs = found * PRIOR_ERROR
    return Calibration(scaled(prior, logs), tuple(exp(x) for x in logs))


def host_time(
    requests: Sequence[RecordedRequest],
    config: ReplayConfig,
    gpu: StepTimeModel,
    first: int,
) -> HostTime:
    """What the host added to `gpu` in the `first` requests of `requests`, in order of arrival.

    ValueError if these have no latencies.
    """
    errors = _errors(requests, config, first)

    def host(shares: Vector) -> HostTime:
        return HostTime(float(shares[0]) * HOST_STEP_S, float(shares[1]) * HOST_SEQUENCE_S)

    return host(_fitted(lambda s: errors(host(s).added_to(gpu)), np.ones(2), least=0.0))


def scaled(prior: StepTimeModel, logs: Vector) -> StepTimeModel:
    """`prior` with each group's coefficients multiplied by the exponential of its log."""
    packed = prior.packed()
    coefficients = packed.coefficients.copy()
    for group, value in zip(GROUPS, logs, strict=True):
        coefficients[list(group)] *= exp(value)
    return StepTimeModel(packed._replace(coefficients=coefficients))


def _errors(
    requests: Sequence[RecordedRequest], config: ReplayConfig, first: int
) -> Callable[[StepTimeModel], Vector]:
    """Log errors of the first TTFTs and TPOTs with this step time, in units of their noise."""
    known = [request.actual for request in requests[:first]]
    actual = [latency for latency in known if latency is not None]
    if not actual or len(actual) < len(known):
        raise ValueError("calibration needs the latencies of the first requests")
    ended_s = max(r.arrival_s + a.e2e_s for r, a in zip(requests, actual, strict=False))
    seen = [request for request in requests if request.arrival_s <= ended_s]
    tokens = np.array([a.output_tokens - 1 for a in actual if a.output_tokens > 1])
    noise = np.concatenate((np.full(len(actual), TTFT_NOISE), TOKEN_NOISE / np.sqrt(tokens)))
    taken = _logs(actual)
    return lambda model: (_logs(replay(seen, config, model, first=first)) - taken) / noise


def _logs(latencies: Sequence[Latency]) -> Vector:
    tpots_s = [latency.tpot_s for latency in latencies if latency.output_tokens > 1]
    return np.log([latency.ttft_s for latency in latencies] + tpots_s)


def _fitted(errors: Callable[[Vector], Vector], begin: Vector, *, least: float = -np.inf) -> Vector:
    """The numbers, `least` or above, that minimize the sum of squared errors and their own squares.

    Slopes are finite differences. A step that increases the sum is undone: the replay jumps where a
    request falls into another batch or is preempted.
    """

    def both(here: Vector) -> Vector:
        return np.concatenate((errors(here), here))

    def slopes(here: Vector) -> Vector:
        found = both(here)
        changes = _CHANGE * np.eye(len(here))
        return np.stack([(both(here + change) - found) / _CHANGE for change in changes], axis=1)

    found: Vector = least_squares(both, begin, slopes, (least, np.inf), max_nfev=_TRIALS).x
    return found
