"""What decides in the benchmarks of provisioning, beside the library's strategies: two that know
what nobody can know.
"""

from bisect import bisect_left
from collections.abc import Sequence
from math import ceil
from typing import ClassVar

from bench.provisioning.traffic import Burst
from foretell.provision import Facts, Plan, Proposal

SPAN_S = 30.0
"""Rates of arrivals are means over so many seconds."""


class Oracle:
    """Knows when requests arrive, until a cold start and `SPAN_S` ahead.

    It asks for `ceil(rate / capacity)` instances, for the highest rate over `SPAN_S` up to then.
    """

    name: ClassVar[str] = "oracle"
    needs_snapshots: ClassVar[bool] = False

    def __init__(self, times_s: Sequence[float], capacity_rps: float) -> None:
        self._times_s = times_s
        self._capacity_rps = capacity_rps

    def propose(self, facts: Facts, plan: Plan) -> Proposal:
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


class Surprised:
    """Knows the tides of the day, and of each burst how high and how long it is, from its first
    moment on: what is left is the cold start.

    It asks for `ceil(rate / CAPACITY_RPS)` instances, for the highest rate that it knows of until a
    cold start and `SPAN_S` ahead, and always for `spare` times what the tides need.
    """

    name: ClassVar[str] = "surprised"
    needs_snapshots: ClassVar[bool] = False
    CAPACITY_RPS: ClassVar[float] = 2.2

    def __init__(
        self, tides: Sequence[float], window_s: float, bursts: Sequence[Burst], spare: float
    ) -> None:
        """`tides`: requests a second in each window of the day."""
        self._tides, self._window_s, self._bursts, self._spare = tides, window_s, bursts, spare

    def propose(self, facts: Facts, plan: Plan) -> Proposal:
        worst, at_s = 0.0, facts.now_s
        while at_s < facts.now_s + plan.cold_start_s + SPAN_S:
            tide = self._tides[min(len(self._tides) - 1, int(at_s / self._window_s))]
            more = 0.0
            for burst in self._bursts:
                if burst.begin_s <= facts.now_s and at_s < burst.end_s:
                    more += burst.factor - 1.0
            worst = max(worst, tide * max(self._spare, 1.0 + more))
            at_s += SPAN_S / 2
        return Proposal(ceil(worst / self.CAPACITY_RPS), f"{worst:.2f} requests/s are known of")
