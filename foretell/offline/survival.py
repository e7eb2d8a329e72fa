"""Kaplan-Meier estimates of many groups' output lengths at once, while requests still run.

`foretell.length.survival` has the exact estimate of one group. A controller forecasts hundreds of
requests at dozens of moments every few steps, so here lengths are counted in bins, each about 4%
wide, and all groups are looked up together.
"""

import numpy as np

from foretell.offline.work import Floats, Ints

LONGEST = 1 << 20
"""Tokens; longer answers count as this long."""


def _edges() -> Ints:
    few = np.arange(33)
    return np.concatenate((few, np.unique(np.geomspace(34, LONGEST, 260).astype(np.int64))))


_EDGES = _edges()  # bin b holds the lengths above edge b-1 up to edge b
_WIDTHS = np.diff(_EDGES.astype(np.float64))
_MIDDLES = (_EDGES[1:] + _EDGES[:-1] + 1) / 2.0


class Survival:
    """P(length > t) of g groups, from answers that ended and ages of those in flight."""

    def __init__(self, groups: int, prior_tokens: float) -> None:
        """`prior_tokens`: the expected length in a group without observations.

        Beyond a group's longest observation, if that is censored, S falls as 1/(1 + t/2m)³ with m
        the `prior_tokens`: an answer of age t is expected to go on for m + t/2 tokens.
        """
        self._ended = np.zeros((groups, len(_EDGES)))
        self._censored = np.zeros_like(self._ended)
        prior = (1.0 + _EDGES / (2.0 * prior_tokens)) ** -3
        self._prior_fall = 1.0 - prior / np.concatenate(([1.0], prior[:-1]))
        self._survival: Floats = np.ones_like(self._ended)
        self.update(np.zeros(0, np.int64), np.zeros(0, np.int64))

    def ended(self, group: int, tokens: int) -> None:
        """Add the length of an answer to `group`; it counts from the next `update` on."""
        self._ended[group, int(_bins(np.array([tokens]))[0])] += 1.0

    def update(self, groups: Ints, ages: Ints) -> None:
        """Estimate anew; `groups` and `ages` are of the requests in flight, in tokens."""
        self._censored[:] = 0.0
        np.add.at(self._censored, (groups, _bins(ages)), 1.0)
        exits = self._ended + self._censored
        at_risk = exits[:, ::-1].cumsum(axis=1)[:, ::-1]
        seen = at_risk > 0
        fall = np.divide(self._ended, at_risk, out=np.zeros_like(exits), where=seen)
        fall = np.where(seen, fall, self._prior_fall)
        fall[:, -1] = 1.0
        self._survival = (1.0 - fall).cumprod(axis=1)

    def survival(self, groups: Ints, tokens: Floats) -> Floats:
        """P(length > tokens) of each group, by the nearest edge below; shapes broadcast."""
        places = np.searchsorted(_EDGES, tokens, side="right") - 1
        return self._survival[groups, places]

    def moments(self) -> tuple[Floats, Floats]:
        """(g,) mean and (g,) mean square of the length."""
        mass = -np.diff(self._survival, axis=1)
        return mass @ _MIDDLES, mass @ (_MIDDLES * _MIDDLES)

    def mean_left(self, groups: Ints, ages: Ints) -> Floats:
        """Tokens that requests of these groups and ages are still expected to generate."""
        area = np.zeros_like(self._survival)
        rest = (self._survival[:, :-1] * _WIDTHS)[:, ::-1].cumsum(axis=1)[:, ::-1]
        area[:, :-1] = rest
        places = np.minimum(np.searchsorted(_EDGES, ages, side="right") - 1, len(_WIDTHS) - 1)
        alive = np.maximum(self._survival[groups, places], 1e-9)
        inside = (ages - _EDGES[places]) * alive
        result: Floats = np.maximum(1.0, (area[groups, places] - inside) / alive)
        return result


def _bins(tokens: Ints) -> Ints:
    return np.minimum(np.searchsorted(_EDGES, tokens, side="left"), len(_EDGES) - 1)
