"""How a serving model's answer lengths depend on features of requests, learned from answers."""

import math

import numpy as np
from numpy.typing import NDArray

from foretell.kernel.compiled import regress
from foretell.length.bins import BINS, CENTRE_LOGS, EDGES
from foretell.length.experience import MEMORY

Floats = NDArray[np.float64]

_DEVIATION_OF_WEIGHTS = 0.06  # prior; features are standardised
_INTERCEPT = 16.0  # constant feature; with its prior the base may be wrong by a factor of e
_MOST_FEATURE = 4.0
_START_DEVIATION = 0.6  # of log length
_DEVIATION_PRIOR = 20.0  # answers
_DEVIATION_MEMORY = 100.0
_LEAST_DEVIATION = 0.05
_ROBUST = 3.0  # deviations to which errors are clipped
_SCALE = math.sqrt(3.0) / math.pi  # of a logistic distribution whose standard deviation is 1
_FORGOTTEN = 1.0 / MEMORY
_UPPER_LOGS: Floats = np.log(EDGES[1:] + 0.5)


class Regression:
    """Linear model of log length relative to the centre of the base's distribution.

    Bayesian recursive least squares. The weights drift and are drawn back to 0 as in an
    Ornstein-Uhlenbeck process, so that old answers fade and the prior comes back. Errors are
    clipped as in Huber's M-estimator. Log lengths are spread logistically.
    """

    __slots__ = ("_answers", "_covariance", "_square", "_weights")

    def __init__(self, features: int) -> None:
        self._weights = np.zeros(features + 1)
        self._covariance = np.eye(features + 1) * _DEVIATION_OF_WEIGHTS**2
        self._square = _START_DEVIATION**2  # mean squared error
        self._answers = _DEVIATION_PRIOR

    def below(self, probabilities: Floats, seen: Floats) -> Floats:
        """P(length <= upper edge) of each bin, (n, `BINS`).

        `probabilities`: the base's, (n, `BINS`); `seen`: standardised features, (n, features).
        """
        found = np.empty((len(seen), BINS))
        regress(
            probabilities,
            _inputs(seen),
            self._weights,
            self._covariance,
            self._square,
            CENTRE_LOGS,
            _UPPER_LOGS,
            _SCALE,
            found,
        )
        return found

    def observe(self, probabilities: Floats, seen: Floats, tokens: int, censored: bool) -> None:
        """Learn from one answer; `probabilities` (`BINS`,), `seen` (features,).

        For one that was cut, the mean of all longer log lengths is used.
        """
        inputs = _inputs(seen[None, :])[0]
        believed = float(probabilities @ CENTRE_LOGS + inputs @ self._weights)
        toward = self._covariance @ inputs
        variance = self._square + float(inputs @ toward)
        log_tokens = math.log(tokens)
        if censored:
            log_tokens = _mean_beyond(log_tokens, believed, math.sqrt(variance))
        most = _ROBUST * math.sqrt(variance)
        error = min(max(log_tokens - believed, -most), most)
        self._weights += toward * (error / variance)
        self._covariance -= np.outer(toward, toward / variance)
        self._answers = min(self._answers + 1.0, _DEVIATION_MEMORY)
        # The squared error, less the part that the uncertainty of the weights explains.
        surprise = error * error * self._square / variance
        self._square += (surprise - self._square) / self._answers
        self._square = max(self._square, _LEAST_DEVIATION**2)
        self._forget()

    def _forget(self) -> None:
        self._weights *= 1.0 - _FORGOTTEN / 2.0
        self._covariance *= 1.0 - _FORGOTTEN
        diagonal = self._covariance.reshape(-1)[:: len(self._weights) + 1]
        diagonal += _FORGOTTEN * _DEVIATION_OF_WEIGHTS**2


def _inputs(seen: Floats) -> Floats:
    """Clipped features with the intercept."""
    found = np.empty((len(seen), seen.shape[1] + 1))
    np.clip(seen, -_MOST_FEATURE, _MOST_FEATURE, out=found[:, :-1])
    found[:, -1] = _INTERCEPT
    return found


def _mean_beyond(least: float, mean: float, deviation: float) -> float:
    """The mean of what is above `least` in a logistic distribution."""
    scale = deviation * _SCALE
    z = min(max((least - mean) / scale, -30.0), 30.0)
    return least + scale * math.log1p(math.exp(-z)) * (1.0 + math.exp(z))
