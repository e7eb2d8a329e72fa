"""The prediction budget: how much predicting a scheduler can afford."""

from collections import deque
from math import exp, inf
from statistics import median
from typing import NamedTuple

from foretell.model import OFFLINE_PRIORITY

SHARE = 0.5
"""The largest share of a scheduler's time for predictions; the rest is for relaying."""
OFFLINE_SHARE = 0.25
"""The largest additional share for predictions for offline requests."""
LATE_S = 0.01
"""Lateness of timers beyond which a scheduler counts as overloaded, whatever the reason."""
_LESS, _MORE = 0.9, 1.02
"""Factors that multiply the budget at each placement: while overloaded, and otherwise."""
_MORE_PER_S = 4.0
"""Factor that multiplies the budget for each second since the last placement, if not late."""
_LONG_S = 60.0
_LEAST = 0.01
"""Lower bound of the product of these factors; the upper bound is 1."""
LEAST_CANDIDATES = 2
"""The fewest candidates that are worth predicting for: with fewer there is no choice."""
_MEMORY_S = 1.0
"""Time constant of the arrival rate, short enough to notice a burst before it has passed."""
_UNSEEN_S = 1.0
"""Time without arrivals that is assumed before the first."""
_LATEST = 5
"""The number of latest costs whose median is expected next, so that an outlier has no effect."""
_TRY_EVERY_S = 1.0
"""Interval at which all candidates are predicted once regardless of load, to measure the cost."""
_SINGLE_RATIO = 0.5
"""Assumed cost of a single rollout relative to a full prediction, until one was measured."""


class PredictionPlan(NamedTuple):
    """What to predict for one placement."""

    candidates: int
    """The number of candidates to predict for; 0: none, compare loads instead."""
    single: bool
    """One rollout with median lengths for each candidate, instead of several with drawn ones."""


class PredictionBudget:
    """Limits predictions to what the arrival rate allows. Pure: time is an argument.

    The budget of one placement is a share of the mean time to the next one, reduced while the
    scheduler's timers run late. If it does not suffice for all candidates, the number of rollouts
    is reduced first, then the number of candidates, and finally nothing is predicted. Placements
    therefore never queue for predictions; under load they become gradually coarser.
    """

    def __init__(self, share: float = SHARE) -> None:
        """`share`: of the scheduler's time, for predictions."""
        self._share = share
        self._rate_weight = 0.0
        self._latest_s = 0.0
        self._first_s: float | None = None
        self._full_s = deque[float](maxlen=_LATEST)
        self._single_s = deque[float](maxlen=_LATEST)
        self._tried_s = -inf
        self._factor = 1.0

    def arrived(self, now_s: float, late_s: float = 0.0) -> None:
        """Count a request to be placed; the scheduler's timers run `late_s` late."""
        pause_s = min(_LONG_S, now_s - self._latest_s)
        factor = _LESS if late_s > LATE_S else _MORE * _MORE_PER_S**pause_s
        self._factor = min(1.0, max(_LEAST, self._factor * factor))
        if self._first_s is None:
            self._first_s = self._latest_s = now_s
        self._rate_weight = 1.0 + self._faded(now_s)
        self._latest_s = now_s

    def took(self, plan: PredictionPlan, instances: int, seconds: float) -> None:
        """Learn that predicting for `instances` instances according to `plan` took `seconds`."""
        if instances > 0 and seconds > 0:
            (self._single_s if plan.single else self._full_s).append(seconds / instances)

    def plan(self, instances: int, now_s: float) -> PredictionPlan:
        """Return what to predict for a request that could go to `instances` instances."""
        if not self._full_s or now_s - self._tried_s > _TRY_EVERY_S:
            self._tried_s = now_s
            return PredictionPlan(instances, False)
        full_s = median(self._full_s)
        budget_s = self._share / max(self._rate_per_s(now_s), 1e-9)
        all_s, least = instances * full_s, min(instances, LEAST_CANDIDATES)
        if all_s <= budget_s and self._factor >= 1.0:
            self._tried_s = now_s
            return PredictionPlan(instances, False)
        single_s = median(self._single_s) if self._single_s else _SINGLE_RATIO * full_s
        if int(budget_s / single_s) < least:
            return PredictionPlan(0, True)
        # Lateness can have other reasons, so it never forbids the low cost of comparing two.
        affordable = int(min(budget_s, all_s) * self._factor / single_s)
        return PredictionPlan(min(instances, max(least, affordable)), True)

    def is_spare(self, instances: int, now_s: float) -> bool:
        """Whether there is time to predict for this many instances in addition to placements."""
        if self._factor * _MORE_PER_S ** min(_LONG_S, now_s - self._latest_s) < 1.0:
            return False
        needed_s = instances * median(self._full_s) if self._full_s else 0.0
        return 2 * needed_s <= self._share / max(self._rate_per_s(now_s), 1e-9)

    def _rate_per_s(self, now_s: float) -> float:
        if self._first_s is None:
            return 0.0
        watched_s = now_s - self._first_s + _UNSEEN_S
        return self._faded(now_s) / (_MEMORY_S * (1.0 - exp(-watched_s / _MEMORY_S)))

    def _faded(self, now_s: float) -> float:
        return self._rate_weight * exp(-max(0.0, now_s - self._latest_s) / _MEMORY_S)


class PredictionBudgets:
    """The budgets for online and for offline requests.

    Hundreds of offline requests may wait in an engine. A prediction for another one simulates them
    all, and a batch sends many requests a second. Their budget is therefore a separate one, so that
    online requests are still predicted.
    """

    def __init__(self) -> None:
        self.online = PredictionBudget()
        self._offline = PredictionBudget(OFFLINE_SHARE)

    def of(self, priority: int) -> PredictionBudget:
        """Return the budget for requests of this priority."""
        return self._offline if priority == OFFLINE_PRIORITY else self.online
