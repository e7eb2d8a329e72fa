"""How much predicting a scheduler can afford."""

from collections import deque
from math import exp, inf
from statistics import median
from typing import NamedTuple

from foretell.model import OFFLINE_PRIORITY

SHARE = 0.5
"""Share of its time that a scheduler spends on predictions at most: the rest is for relaying."""
OFFLINE_SHARE = 0.25
"""Share of its time that it spends on predictions for offline requests, besides."""
LATE_S = 0.01
"""Lateness of a scheduler beyond which it has too much to do, whatever the reason."""
_LESS, _MORE = 0.9, 1.02
"""Factors on the budget with each placement while it is late, and while it is not."""
_MORE_PER_S = 4.0
"""Factor on the budget with each second in which it is not late."""
_LONG_S = 60.0
_LEAST = 0.01
"""Least factor on the budget."""
LEAST_CANDIDATES = 2
"""Comparing fewer is not choosing."""
_MEMORY_S = 1.0
"""Time constant of the rate of arrivals: a burst must be noticed before it has passed."""
_UNSEEN_S = 1.0
"""Time without arrivals that is assumed before the first."""
_LATEST = 5
"""Latest predictions whose median cost is what the next one will cost: one may have been slow."""
_TRY_EVERY_S = 1.0
"""Pause after which all is predicted once, however much arrives, to see what it costs by now."""
_SINGLE_RATIO = 0.5
"""Cost of a single rollout, in proportion to that of all, before one was made."""


class Plan(NamedTuple):
    """What is predicted for one placement."""

    candidates: int
    """Instances that are compared; 0: none are predicted for, their loads have to do."""
    single: bool
    """One rollout with middling lengths for each, instead of several with drawn ones."""


class PredictionBudget:
    """Spends as much on each placement as the rate of arrivals allows; pure, time is an argument.

    The budget of one placement is `SHARE` of the time to the next, less while the scheduler does
    everything late. Where that is too little for all, first rollouts are saved, then candidates,
    and at last there is no prediction at all. So placements never queue for predictions, whatever
    arrives: they get coarser, bit by bit.
    """

    def __init__(self, share: float = SHARE) -> None:
        """`share` instead of `SHARE`."""
        self._share = share
        self._rate_weight = 0.0
        self._latest_s = 0.0
        self._first_s: float | None = None
        self._full_s = deque[float](maxlen=_LATEST)
        self._single_s = deque[float](maxlen=_LATEST)
        self._tried_s = -inf
        self._factor = 1.0

    def arrived(self, now_s: float, late_s: float = 0.0) -> None:
        """A request is to be placed; the scheduler does things `late_s` after their time."""
        pause_s = min(_LONG_S, now_s - self._latest_s)
        factor = _LESS if late_s > LATE_S else _MORE * _MORE_PER_S**pause_s
        self._factor = min(1.0, max(_LEAST, self._factor * factor))
        if self._first_s is None:
            self._first_s = self._latest_s = now_s
        self._rate_weight = 1.0 + self._faded(now_s)
        self._latest_s = now_s

    def took(self, plan: Plan, instances: int, seconds: float) -> None:
        """Predicting for so many instances as planned took so long."""
        if instances > 0 and seconds > 0:
            (self._single_s if plan.single else self._full_s).append(seconds / instances)

    def plan(self, instances: int, now_s: float) -> Plan:
        """What is to be predicted for a request that `instances` could serve."""
        if not self._full_s or now_s - self._tried_s > _TRY_EVERY_S:
            self._tried_s = now_s
            return Plan(instances, False)
        full_s = median(self._full_s)
        budget_s = self._share / max(self._rate_per_s(now_s), 1e-9)
        all_s, least = instances * full_s, min(instances, LEAST_CANDIDATES)
        if all_s <= budget_s and self._factor >= 1.0:
            self._tried_s = now_s
            return Plan(instances, False)
        single_s = median(self._single_s) if self._single_s else _SINGLE_RATIO * full_s
        if int(budget_s / single_s) < least:
            return Plan(0, True)
        # Lateness has other reasons, too: it does not forbid the little that comparing two takes.
        affordable = int(min(budget_s, all_s) * self._factor / single_s)
        return Plan(min(instances, max(least, affordable)), True)

    def is_spare(self, instances: int, now_s: float) -> bool:
        """Whether there is time to predict for so many instances besides placements."""
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
    """What may be spent on online and on offline requests.

    An engine may keep hundreds of offline requests waiting. To predict for one of them means to go
    through all of these, and a batch sends many a second: online requests must be predicted for all
    the same.
    """

    def __init__(self) -> None:
        self.online = PredictionBudget()
        self._offline = PredictionBudget(OFFLINE_SHARE)

    def of(self, priority: int) -> PredictionBudget:
        """The one for requests of this priority."""
        return self._offline if priority == OFFLINE_PRIORITY else self.online
