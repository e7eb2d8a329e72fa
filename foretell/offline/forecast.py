"""Forecasts how much of an engine's KV cache requests will hold, by their estimated lengths."""

import numpy as np

from foretell.offline.feed import InFlight
from foretell.offline.waiting import OfflineJob, Waiting
from foretell.offline.work import Floats, Ints

_MOMENTS = 48
_AHEAD = 1.5  # of the longest time that is expected


class WorkForecast:
    """KV tokens that requests will hold at some moments from now on.

    Whether a request still runs is estimated midway between two moments: it may end at any time.
    """

    def __init__(self, job: OfflineJob, waiting: Waiting) -> None:
        self.moments: Ints = np.arange(1)
        """Steps from now."""
        tree = job.tree
        self._own = (tree.depth - tree.begins)[: tree.requests]
        self._known, self._most = job.known, job.most_tokens
        self._survival, self._group = waiting.survival, waiting.group

    def look(self, steps: float) -> None:
        """Choose the moments so that they cover the next `steps` steps and half as many again."""
        self.moments = np.linspace(0, _AHEAD * steps, _MOMENTS).astype(np.int64)

    def of(self, flight: InFlight) -> tuple[Floats, Floats]:
        """The result of `held` for the requests in flight."""
        return self.held(flight.requests, flight.ages)

    def held(self, requests: Ints, ages: Ints) -> tuple[Floats, Floats]:
        """Mean and variance, (moments,), of the KV tokens that requests of these ages hold."""
        stays = self.stays(requests, ages)
        held = self._own[requests][:, None] + ages[:, None] + self.moments[None, :]
        mean: Floats = (stays * held).sum(axis=0)
        variance: Floats = (stays * (1.0 - stays) * held * held).sum(axis=0)
        return mean, variance

    def stays(self, requests: Ints, ages: Ints) -> Floats:
        """(requests, moments): the probability that each request still runs at each moment."""
        moments = self.moments[None, :]
        middle = ages[:, None] + moments - np.diff(moments, prepend=0) / 2.0
        groups, known = self._group[requests][:, None], self._known[requests][:, None]
        survival = self._survival
        alive = np.maximum(survival.survival(groups, ages[:, None].astype(float)), 1e-12)
        stays = np.minimum(1.0, survival.survival(groups, middle) / alive)
        return np.where(known > 0, middle < known, stays * (middle < self._most))
