"""Learn an engine's step time from its own steps: recursive least squares, one update per step.

The estimate is linear in `latency.features.FEATURES` and, if a profile has tables, in their value:
scale * tables + corrections. It minimises *relative* error, so a 5 ms decode step teaches as much
as a 300 ms prefill. Five things keep it robust on real traffic:

- The prior is a model that is wrong mostly by one common factor (another clock, another driver)
  and a little in each coefficient. Decode steps alone therefore already correct the prefill
  coefficients, and later prefill steps refine them. Tables are trusted as a whole: their scale
  takes the common factor, and the correction of each feature starts at zero.
- Forgetting is directional (Kulhavy 1987; Bittanti, Bolzern, Campi 1990): only what a step excites
  is forgotten. With plain exponential forgetting, an hour of pure decode erases what was known of
  prefill and lets the covariance overflow.
- The error of one step is clipped at a multiple of the usual error, so a stall teaches little.
- A deviation that steps of all shapes share for some seconds is not learnt but tracked, by one
  factor on all predictions (`latency.speed`). While there are no steps, a phase that differs from
  the usual speed is believed less and less (`latency.usual`, `latency.phase`).
- If errors are still one-sided, of decodes or of steps with prefill, and more than they usually
  are, the engine has changed or is not the one of the prior: the covariance is widened, and the
  new speed is learnt within tens of steps.

Predictions use no negative coefficient: more work never takes less time.
"""

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from foretell.kernel import regression
from foretell.kernel import step_time as kernel
from foretell.kernel.step_time import FLOOR, TABLES_SCALE, StepTime
from foretell.latency.features import FEATURES, features
from foretell.latency.linear import LinearStepTime, StepTimeModel, sums
from foretell.latency.residuals import StepResiduals, spread
from foretell.latency.speed import Speed
from foretell.latency.tables import profile_step_time
from foretell.latency.usual import Usual
from foretell.model import BatchShape, GpuProfile

Vector = NDArray[np.float64]
Prior = StepTimeModel | GpuProfile

_PARAMETERS = [*range(len(FEATURES)), TABLES_SCALE]  # places in `StepTime.coefficients`

# A busy step. It conditions the arithmetic and defines what a share of a step is.
_TYPICAL = BatchShape(
    prefill_seqs=1, prefill_tokens=256, prefill_pairs=128_000, decode_seqs=32, decode_pairs=32_000
)

# Without a prior: a small model on a mid-range GPU, hardly trusted.
_DEFAULT_S = (10e-3, 50e-6, 10e-9, 50e-6, 50e-6, 100e-9)
_DEFAULT_ERROR = 3.0
_PROFILE_ERROR = 0.3

_NOISE = 0.1  # relative scatter of a step around the best linear model (0.11 on a real engine)
# Prior deviation of each coefficient as a share of a typical step: alone, and as a correction of
# tables. If it is too small, a wrong table is believed for thousands of steps; if it is too large,
# decodes say less about prefill.
_SHARE, _SHARE_BESIDE_TABLES = 0.02, 0.3
_CLIP = 4.0  # errors beyond this many mean errors count as this many
_MEAN_RATE = 1 / 16  # of the two means that detect a change: about the last 16 steps
_REPORT_RATE = 1 / 64  # of the reported error
# Change: the mean signed error is this share of the mean absolute one. Independent errors of
# mean zero reach it by chance about once in a thousand steps; that only speeds up learning a bit.
_ONE_SIDED = 0.75
_UNUSUAL = 6.0  # and it is this many times its usual value: hosts have phases
_SURELY = 0.6  # or it is this much: more than twice as fast or as slow
_USUAL_RATE = 1 / 512
_CHANGE_ERROR = 0.3  # assumed of an engine that just started or changed
_LEAST_CHANGE = 0.02
_RECENT = 4


@dataclass(slots=True)
class _Errors:
    """Recent errors of one kind of steps, at the current speed: mean absolute and mean signed.

    Decodes and steps with prefill are tracked separately: if decodes are faster than predicted and
    prefill is slower, the errors of all steps together are not one-sided.
    """

    mean: float = _CHANGE_ERROR
    signed: float = 0.0
    usual: float = 0.0
    """The long-run mean of |signed|."""
    slowdowns: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))

    def add(self, error: float, slowdown: float) -> None:
        """Add a step's error, and its duration over the learnt one, without the speed factor."""
        self.mean += _MEAN_RATE * (abs(error) - self.mean)
        self.signed += _MEAN_RATE * (error - self.signed)
        self.usual += _USUAL_RATE * (abs(self.signed) - self.usual)
        self.slowdowns.append(slowdown)

    def one_sided(self) -> bool:
        """Whether errors are one-sided, which means that the engine has changed."""
        least = max(_LEAST_CHANGE, min(_SURELY, _UNUSUAL * self.usual))
        return abs(self.signed) > max(least, _ONE_SIDED * self.mean)

    def begin(self) -> None:
        """Restart after a change of the engine; only `usual` is kept."""
        self.mean, self.signed = _CHANGE_ERROR, 0.0
        self.slowdowns.clear()


class OnlineStepTime(StepTimeModel):
    """A `StepTimeModel` that learns from observed steps.

    Not thread-safe. `prior` is the model before the first step, `prior_error` its assumed relative
    error (0.3: about 30%). None is 0.3 with a prior and 3.0 without.
    """

    def __init__(
        self,
        prior: Prior | None = None,
        *,
        prior_error: float | None = None,
        forgetting: float = 0.998,
    ) -> None:
        """ValueError for numbers out of range."""
        if not 0.5 < forgetting <= 1.0:
            raise ValueError(f"forgetting must be in (0.5, 1], got {forgetting}")
        error = _DEFAULT_ERROR if prior is None else _PROFILE_ERROR
        error = error if prior_error is None else prior_error
        given = _model_of(prior).packed()
        if error <= 0 or not np.isfinite(given.coefficients).all():
            raise ValueError("need finite coefficients and a positive prior_error")
        self._given = given
        self._floor_s = float(given.coefficients[FLOOR])
        self._has_tables = bool(given.coefficients[TABLES_SCALE])
        self._tables = given._replace(coefficients=np.zeros_like(given.coefficients))
        self._tables.coefficients[TABLES_SCALE] = 1.0 if self._has_tables else 0.0
        # The regressors of a typical step. Theta is scaled by it, to seconds of a typical step.
        self._typical = np.array((*features(_TYPICAL), self._tables_s(_TYPICAL) or 1.0))
        self._theta = given.coefficients[_PARAMETERS] * self._typical
        share = _SHARE_BESIDE_TABLES if self._has_tables else _SHARE
        self._shares = np.array((*[share] * len(FEATURES), 0.0))
        self._p = np.zeros((len(_PARAMETERS), len(_PARAMETERS)))
        self._forgetting = forgetting
        self._widen(error)
        self._steps = 0
        self._changes = 0
        self._errors = {False: _Errors(), True: _Errors()}
        self._reported_error = error
        self._residuals = StepResiduals(error)
        self._speed = Speed()
        self._usual = Usual(self._theta, self._p, forgetting)
        self._learnt: Vector | None = None
        self._current: StepTimeModel | None = None
        self._held = self._estimate()

    @property
    def steps(self) -> int:
        """The number of steps learnt from."""
        return self._steps

    @property
    def changes(self) -> int:
        """The number of detected changes of the engine's speed, including false alarms."""
        return self._changes

    @property
    def relative_error(self) -> float:
        """Mean of |predicted - observed| / observed, one step ahead, over about the last 64 steps.

        A single step counts at most 1. Before the first step it is the prior's assumed error.
        """
        return self._reported_error

    @property
    def speed_factor(self) -> float:
        """The current factor on all learnt step times (`latency.speed`)."""
        return self._speed.factor

    def spread(self, steps: int) -> float:
        """Standard deviation of the time of the next `steps` steps, relative to the prediction.

        The part that all steps share does not average out (`latency.residuals`).
        """
        return spread(self._residuals.variances, steps)

    @property
    def variances(self) -> tuple[float, float]:
        """The relative variances from which `spread` is computed."""
        return self._residuals.variances

    def packed(self) -> StepTime:
        return self.current().packed()

    def current(self) -> StepTimeModel:
        """The current model, frozen; the same object until it changes."""
        if self._current is None:
            coefficients = np.empty_like(self._given.coefficients)
            coefficients[_PARAMETERS] = self._estimate() * self._speed.factor / self._typical
            coefficients[FLOOR] = self._floor_s
            self._current = StepTimeModel(self._given._replace(coefficients=coefficients))
        return self._current

    def observe(self, shape: BatchShape, duration_s: float) -> None:
        """Learn that a step of `shape` took `duration_s`. Invalid durations are ignored.

        So are steps without tokens, which flush finished requests and run no model.
        """
        if not (math.isfinite(duration_s) and duration_s > 0) or shape.tokens <= 0:
            return
        x = np.array((*features(shape), self._tables_s(shape))) / self._typical
        learnt_s = max(self._floor_s, float(self._estimate() @ x))
        ahead_s = max(self._floor_s, learnt_s * self._speed.factor)
        held_s = max(self._floor_s, float(self._held @ x))
        self._report(abs(ahead_s - duration_s) / duration_s)
        window_ended = self._residuals.add(held_s, duration_s)
        self._learn(x, shape.prefill_tokens > 0, duration_s)
        self._steps += 1
        if window_ended:
            self._held = self._estimate() * self._speed.factor

    def rest(self, seconds: float) -> None:
        """Note that no step was made for so many seconds: let a recent phase fade."""
        faded = self._usual.rest(seconds)
        if faded != 1.0:
            self._speed.fade(faded)
            self._held = self._held * faded
            self._current = None

    def _learn(self, x: Vector, prefill: bool, duration_s: float) -> None:
        predicted_s = float(self._theta @ x)  # unconstrained: it may be negative
        learnt_s = max(self._floor_s, predicted_s)
        errors = self._errors[prefill]
        errors.add(_relative(duration_s, predicted_s * self._speed.factor), duration_s / learnt_s)
        if errors.one_sided():
            self._change(errors)
        self._speed.add(duration_s, learnt_s, errors.mean)
        limit = _CLIP * errors.mean
        believed = self._estimate() * self._speed.factor
        self._usual.add(x, duration_s, believed, limit)
        error = min(limit, max(-limit, _relative(duration_s, predicted_s)))
        weight = 1.0 / max(duration_s, abs(predicted_s))
        regression.update(self._theta, self._p, x * weight, error, self._forgetting)
        self._learnt = self._current = None

    def _tables_s(self, shape: BatchShape) -> float:
        return kernel.step_s(self._tables, *sums(shape)) if self._has_tables else 0.0

    def _estimate(self) -> Vector:
        """The parameters for predictions, none of them negative."""
        if self._learnt is None:
            self._learnt = regression.non_negative(self._theta, self._p)
        return self._learnt

    def _report(self, error: float) -> None:
        # A plain mean at first, so that the prior's assumed error does not linger.
        rate = max(_REPORT_RATE, 1.0 / (self._steps + 1))
        self._reported_error += rate * (min(1.0, error) - self._reported_error)

    def _change(self, errors: "_Errors") -> None:
        """Widen the covariance by the observed bias, so that the new speed is learnt quickly.

        If all recent steps were longer than learnt, widen in proportion to them: coefficients that
        are 100 times too small would hardly move by a share of themselves.
        """
        bias = max(_CHANGE_ERROR, abs(errors.signed))
        self._widen(bias * max(1.0, min(errors.slowdowns)))
        for kind in self._errors.values():
            kind.begin()
        self._speed.begin()
        self._changes += 1

    def _widen(self, error: float) -> None:
        """Add the uncertainty of a model that is off by `error`, in common and per parameter."""
        parts_s = np.maximum(self._theta, 0.0)
        typical_s = float(parts_s.sum())
        shares = self._shares * typical_s + self._floor_s * (self._shares > 0)
        if self._has_tables:  # or a scale that came near zero would stay there
            shares[-1] = typical_s - parts_s[-1]
        regression.widen(self._theta, self._p, (error / _NOISE) ** 2, shares)


def _relative(actual_s: float, predicted_s: float) -> float:
    """The error of a prediction, relative to the larger of actual and predicted.

    It is bounded, and k times too slow counts as much as k times too fast.
    """
    return (actual_s - predicted_s) / max(actual_s, abs(predicted_s))


def _model_of(prior: Prior | None) -> StepTimeModel:
    if isinstance(prior, GpuProfile):
        return profile_step_time(prior)
    return LinearStepTime(_DEFAULT_S) if prior is None else prior
