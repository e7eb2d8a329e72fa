"""Learn an engine's step time from its own steps: recursive least squares, one update a step.

The estimate is linear in `latency.features.FEATURES` and minimises *relative* error, so a 5 ms
decode step teaches as much as a 300 ms prefill. Four things keep it sane on real traffic:

- The prior is a model that is wrong mostly by one common factor (another clock, another driver)
  and a little in each coefficient. Decode steps alone therefore already correct the prefill
  coefficients, and later prefill steps refine them.
- Forgetting is directional (Kulhavy 1987; Bittanti, Bolzern, Campi 1990): only what a step excites
  is forgotten. With plain exponential forgetting, an hour of pure decode erases what was known of
  prefill and lets the covariance overflow.
- One step's surprise is clipped at a multiple of the usual error, so a stall teaches little.
- A persistent one-sided error means that the engine changed: the covariance is widened, and the
  new speed is learnt within tens of steps.

Plain Python on purpose: `observe` costs about 15 us of CPU; numpy takes as long for the products.
"""

import math
from collections import deque
from operator import mul

from foretell.kernel.step_time import StepTime
from foretell.latency.features import FEATURES, features
from foretell.latency.linear import LinearStepTime
from foretell.model import BatchShape, GpuProfile

_N = len(FEATURES)

# Typical value of each feature in a busy step. Only conditions the arithmetic.
_TYPICAL = (1.0, 256.0, 128e3, 1.0, 32.0, 32e3)

# Where nobody gave a prior: a small model on a mid-range GPU, trusted for next to nothing.
_DEFAULT_S = (10e-3, 50e-6, 10e-9, 50e-6, 50e-6, 100e-9)
_DEFAULT_ERROR = 3.0
_PROFILE_ERROR = 0.3

_NOISE = 0.1  # relative scatter of a step around the best linear model (0.11 on a real engine)
_SHARE = 0.02  # share of a typical step that a coefficient of zero may turn out to have
_CLIP = 4.0  # surprises beyond this many mean errors count as this many
_MEAN_RATE = 1 / 16  # of the two means that detect a change: about the last 16 steps
_REPORT_RATE = 1 / 64  # of the error that is reported
# Change: the mean signed error is this share of the mean absolute one. Independent errors of
# mean zero reach it by chance about once in a thousand steps, and then only learn a bit faster.
_ONE_SIDED = 0.75
_CHANGE_ERROR = 0.3  # assumed of an engine that just started or changed
_LEAST_CHANGE = 0.02
_RECENT = 4


class OnlineStepTime:
    """A `StepTimeModel` that learns from observed steps.

    Not thread-safe. `prior` says what to predict before anything was seen; `prior_error` how wrong
    it may be (0.3: by about 30%); None takes 0.3 with a prior, and with none next to no trust.
    """

    def __init__(
        self,
        prior: LinearStepTime | GpuProfile | None = None,
        *,
        prior_error: float | None = None,
        forgetting: float = 0.998,
    ) -> None:
        if not 0.5 < forgetting <= 1.0:
            raise ValueError(f"forgetting must be in (0.5, 1], got {forgetting}")
        coefficients = _DEFAULT_S if prior is None else prior.coefficients_s
        error = _DEFAULT_ERROR if prior is None else _PROFILE_ERROR
        error = error if prior_error is None else prior_error
        if error <= 0 or len(coefficients) != _N or not all(map(math.isfinite, coefficients)):
            raise ValueError(f"need {_N} finite coefficients and a positive prior_error")
        self._floor_s = prior.floor_s if isinstance(prior, LinearStepTime) else 1e-6
        self._forgetting = forgetting
        self._theta = [c * s for c, s in zip(coefficients, _TYPICAL, strict=True)]
        self._p = [[0.0] * _N for _ in range(_N)]
        self._widen(error)
        self._steps = 0
        self._mean_error = _CHANGE_ERROR
        self._signed_error = 0.0
        self._slowdowns: deque[float] = deque(maxlen=_RECENT)
        self._reported_error = error
        self._current: LinearStepTime | None = None

    @property
    def steps(self) -> int:
        """Steps learnt from."""
        return self._steps

    @property
    def relative_error(self) -> float:
        """Mean of |predicted - observed| / observed, one step ahead, over about the last 64 steps.

        A single step counts at most 1. Before the first step: the prior's assumed error.
        """
        return self._reported_error

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of one step of `shape`."""
        return self.current().step_s(shape)

    def decode_run_s(self, shape: BatchShape, steps: int) -> float:
        """Seconds of `steps` pure-decode steps from `shape`."""
        return self.current().decode_run_s(shape, steps)

    def packed(self) -> StepTime:
        return self.current().packed()

    def current(self) -> LinearStepTime:
        """The model as of now, frozen; the same object until the next `observe`."""
        if self._current is None:
            theta = self._non_negative()
            scaled = tuple(t / s for t, s in zip(theta, _TYPICAL, strict=True))
            self._current = LinearStepTime(scaled, self._floor_s)
        return self._current

    def observe(self, shape: BatchShape, duration_s: float) -> None:
        """Learn that a step of `shape` took `duration_s`. Durations that are no time are ignored.

        So are steps without tokens: they flush finished requests and run no model.
        """
        if not (math.isfinite(duration_s) and duration_s > 0) or shape.tokens <= 0:
            return
        self._report(abs(self.step_s(shape) - duration_s) / duration_s)
        x = [f / s for f, s in zip(features(shape), _TYPICAL, strict=True)]
        predicted_s = sum(map(mul, self._theta, x))
        # Relative to the larger of the two, the error is bounded, and a factor of k too slow
        # counts as much as a factor of k too fast. (The unconstrained sum may be negative.)
        weight = 1.0 / max(duration_s, abs(predicted_s))
        error = (duration_s - predicted_s) * weight
        self._detect_change(error, duration_s / max(self._floor_s, predicted_s))
        limit = _CLIP * self._mean_error
        self._update([f * weight for f in x], min(limit, max(-limit, error)))
        self._current = None
        self._steps += 1

    def _report(self, error: float) -> None:
        # A plain mean at first, so that the prior's assumed error does not linger.
        rate = max(_REPORT_RATE, 1.0 / (self._steps + 1))
        self._reported_error += rate * (min(1.0, error) - self._reported_error)

    def _detect_change(self, error: float, slowdown: float) -> None:
        """Follow the signed and the absolute error; widen the covariance when they agree.

        Widened in proportion to the observed steps where all recent ones were longer: a share of
        coefficients that are 100 times too small would hardly move.
        """
        self._mean_error += _MEAN_RATE * (abs(error) - self._mean_error)
        self._signed_error += _MEAN_RATE * (error - self._signed_error)
        self._slowdowns.append(slowdown)
        bias = abs(self._signed_error)
        if bias > _LEAST_CHANGE and bias > _ONE_SIDED * self._mean_error:
            self._widen(max(_CHANGE_ERROR, bias) * max(1.0, min(self._slowdowns)))
            self._signed_error, self._mean_error = 0.0, _CHANGE_ERROR

    def _widen(self, error: float) -> None:
        """Add the uncertainty of a model that is off by `error`: in common, and in each part."""
        theta = [max(0.0, t) for t in self._theta]
        share = _SHARE * sum(theta) + self._floor_s
        variance = (error / _NOISE) ** 2
        for i in range(_N):
            for j in range(_N):
                self._p[i][j] += variance * theta[i] * theta[j]
            self._p[i][i] += variance * (theta[i] ** 2 + share**2)

    def _update(self, x: list[float], error: float) -> None:
        """One step of recursive least squares with directional forgetting.

        With r = x'Px: theta += Px error / (1 + r), and P -= Px x'P / (1/e + r) where
        e = l - (1 - l) / r discounts, in the direction of x only, old knowledge by l.
        """
        p, theta = self._p, self._theta
        px = [sum(map(mul, row, x)) for row in p]
        r = sum(map(mul, px, x))
        if r <= 0.0:
            return
        gain = error / (1.0 + r)
        for i in range(_N):
            theta[i] += gain * px[i]
        e = self._forgetting - (1.0 - self._forgetting) / r
        shrink = e / (1.0 + e * r)
        for i in range(_N):
            row, scaled = p[i], shrink * px[i]
            for j in range(i, _N):
                row[j] -= scaled * px[j]
                p[j][i] = row[j]

    def _non_negative(self) -> list[float]:
        """The estimate under the constraint that no coefficient is negative.

        Setting a negative coefficient to zero alone would spoil the sum, for its neighbours made
        up for it: the estimate is conditioned on it being zero (a noiseless observation).
        """
        theta = list(self._theta)
        if min(theta) >= 0.0:
            return theta
        p = [list(row) for row in self._p]
        free = set(range(_N))
        while True:
            worst = min(free, key=theta.__getitem__, default=None)
            if worst is None or theta[worst] >= 0.0:
                return [max(0.0, t) for t in theta]
            free.discard(worst)
            column = [row[worst] for row in p]
            if column[worst] > 0.0:
                step = theta[worst] / column[worst]
                for i in free:
                    theta[i] -= column[i] * step
                    for j in free:
                        p[i][j] -= column[i] * column[j] / column[worst]
            theta[worst] = 0.0
