"""A strategy for the benchmark of provisioning that knows future arrivals."""

from bisect import bisect_left
from collections.abc import Sequence
from math import ceil
from typing import ClassVar

from foretell.provision import Facts, Proposal, StrategyPlan

SPAN_S = 30.0
"""Seconds over which rates of arrivals are averaged."""


class Oracle:
    """Knows when requests arrive, up to a cold start plus `SPAN_S` ahead.

    It proposes `ceil(rate / capacity)` instances, for the highest rate over `SPAN_S` until then.
    """

    name: ClassVar[str] = "oracle"

    def __init__(self, times_s: Sequence[float], capacity_rps: float) -> None:
        self._times_s = times_s
        self._capacity_rps = capacity_rps

    def propose(self, facts: Facts, plan: StrategyPlan) -> Proposal:
        until_s, worst = facts.now_s + plan.cold_start_s + SPAN_S, 0.0
        at_s = facts.now_s - SPAN_S
        while at_s < until_s:
            worst = max(worst, self._rate(at_s))
            at_s += SPAN_S / 2
        wanted = ceil(worst / self._capacity_rps)
        return Proposal(wanted, f"{worst:.2f} requests/s until a cold start from now")

    def _rate(self, since_s: float) -> float:
        first, last = (bisect_left(self._times_s, t) for t in (since_s, since_s + SPAN_S))
        return (last - first) / SPAN_S
