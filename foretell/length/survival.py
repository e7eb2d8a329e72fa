"""Output-length distribution from complete and censored observations."""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable

# Products of survival ratios miss round levels such as 0.5 by a few ulp.
_LEVEL_TOLERANCE = 1e-9


class SurvivalCurve:
    """The Kaplan-Meier estimate of S(t) = P(output length > t), t in tokens.

    The product-limit estimator (Kaplan and Meier, 1958): at every length t at which answers
    ended, S is multiplied by 1 - ended(t) / at_risk(t). An answer cut at t by `max_tokens` or an
    abort counts as at risk at t, and leaves afterwards.

    If the longest observation is censored, the estimator says nothing beyond it. The tail there is
    an exponential of mean `tail_mean_tokens`; without any observation the whole curve is that
    exponential.
    """

    __slots__ = ("_areas", "_horizon", "_lengths", "_survival", "_tail_mean")

    def __init__(
        self, ended: Iterable[int], censored: Iterable[int], tail_mean_tokens: float
    ) -> None:
        endings = Counter(ended)
        exits = endings + Counter(censored)
        at_risk = exits.total()
        survival, area, previous = 1.0, 0.0, 0
        # Entry i: S right after _lengths[i], and the area under S from 0 to _lengths[i].
        self._lengths, self._survival, self._areas = [0], [1.0], [0.0]
        for length in sorted(exits):
            area += survival * (length - previous)
            previous = length
            if endings[length]:
                survival *= 1.0 - endings[length] / at_risk
                self._lengths.append(length)
                self._survival.append(survival)
                self._areas.append(area)
            at_risk -= exits[length]
        self._horizon = previous
        self._tail_mean = tail_mean_tokens

    def survival(self, length_tokens: float) -> float:
        """P(output length > `length_tokens`)."""
        s = self._survival[max(0, bisect_right(self._lengths, length_tokens) - 1)]
        beyond = max(0.0, length_tokens - self._horizon)
        return s * math.exp(-beyond / self._tail_mean)

    def quantile(self, level: float) -> float:
        """The shortest length, in tokens, that an answer stays within with probability `level`.

        `level` is in (0, 1).
        """
        left = 1.0 - level
        step = bisect_left(self._survival, -(left + _LEVEL_TOLERANCE), key=lambda s: -s)
        if step < len(self._lengths):
            return float(self._lengths[step])
        return self._horizon + self._tail_mean * math.log(self._survival[-1] / left)

    def mean(self, limit_tokens: float = math.inf) -> float:
        """The restricted mean E[min(output length, `limit_tokens`)]: the area under S."""
        inside = min(limit_tokens, self._horizon)
        step = bisect_right(self._lengths, inside) - 1
        area = self._areas[step] + self._survival[step] * (inside - self._lengths[step])
        beyond = limit_tokens - self._horizon
        if beyond > 0:
            area += self._survival[-1] * self._tail_mean * -math.expm1(-beyond / self._tail_mean)
        return area
