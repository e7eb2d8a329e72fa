"""Proposes the fewest instances with which the cluster's twins, run forward, keep the targets."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from foretell.engine.published import Snapshot
from foretell.model import Slo
from foretell.provision.arrivals import ArrivalForecast
from foretell.provision.base import Proposal, StrategyPlan
from foretell.provision.config import DAY_S, TUNING
from foretell.provision.facts import Facts, InstancePhase
from foretell.provision.rollout import Coming, EngineKind, EnginePlace, share_within

TTFT_S, TPOT_S, WITHIN = 2.0, 0.1, 0.99
"""The default targets, and the ratio of requests that shall be within both."""


@dataclass(frozen=True, slots=True)
class _Found:
    """The result of a rollout. With more load it would be no better, with less no worse."""

    at_s: float
    instances: int
    rate: float
    requests: int
    from_now: bool
    """Whether the targets had to be kept from `at_s` on; otherwise from a cold start later."""
    keeps: bool


class Foresight:
    """Forecasts arrivals one cold start ahead (`ArrivalForecast`) at the wanted `confidence`, and
    runs the twins of all instances forward with the present number, fewer and more
    (`share_within`). Proposes the fewest with which at least `within` of the requests keep `ttft_s`
    and `tpot_s`. Fewer than now must keep them from now on, more once they can be ready.
    """

    name: ClassVar[str] = "foresight"

    def __init__(
        self,
        *,
        ttft_s: float = TTFT_S,
        tpot_s: float = TPOT_S,
        within: float = WITHIN,
        confidence: float = 0.9,
        day_s: float = DAY_S,
    ) -> None:
        self._slo = Slo(ttft_s, tpot_s)
        if not (0 < within < 1 and 0 < confidence < 1):
            raise ValueError("within and confidence must lie between 0 and 1")
        self.within = within
        """The ratio of requests that must be within the targets."""
        self._confidence = confidence
        self.forecast = ArrivalForecast(day_s=day_s)
        self._lengths: deque[tuple[int, float]] = deque(maxlen=TUNING.lengths)
        self._kind: EngineKind | None = None
        self._found: deque[_Found] = deque(maxlen=256)

    def propose(self, facts: Facts, plan: StrategyPlan) -> Proposal:
        self.forecast.observe(facts.now_s, facts.arrived)
        self._lengths.extend(facts.lengths)
        published = {each.instance_id: each.published() for each in facts.instances}
        for snapshot in published.values():
            if snapshot is not None:
                self._kind = EngineKind(snapshot.config, snapshot.step_time)
        if self._kind is None or not self.forecast.known or not self._lengths:
            return Proposal(plan.instances, "nothing is known of arrivals or engines yet")
        rates = tuple(
            self.forecast.upper(facts.now_s, ahead_s, TUNING.window_s, self._confidence)
            for ahead_s in (0.0, plan.cold_start_s)
        )
        if not (rates[0] or rates[1] or facts.requests):
            return Proposal(plan.minimum, "nothing is expected", self._confidence, 0.0)
        wanted, share = self._fewest(facts, published, plan, self._kind, rates)
        why = (
            f"{rates[1]:.2f} requests/s expected in {plan.cold_start_s:.0f} s at most, "
            f"{share:.1%} within the targets"
        )
        expected = self.forecast.mean(facts.now_s, plan.cold_start_s)
        if share < self.within:  # the rollout was not run to its end, or not at all
            return Proposal(wanted, why, None, expected)
        return Proposal(wanted, why, self._confidence, expected, share)

    def _fewest(
        self,
        facts: Facts,
        published: Mapping[str, Snapshot | None],
        plan: StrategyPlan,
        kind: EngineKind,
        rates: tuple[float, ...],
    ) -> tuple[int, float]:
        """The number of instances, and the share within the targets as far as rollouts show it."""
        ready = sorted(facts.in_phase(InstancePhase.READY), key=lambda i: -i.requests)
        here = [EnginePlace(published[instance.instance_id]) for instance in ready]
        here += [
            EnginePlace(None, max(0.0, plan.cold_start_s - (facts.now_s - i.since_s)))
            for i in sorted(facts.in_phase(InstancePhase.WARMING), key=lambda i: i.since_s)
        ]

        def share(instances: int) -> float:
            new = [EnginePlace(None, plan.cold_start_s)] * (instances - len(here))
            return self._share([*here[:instances], *new], facts, plan, kind, rates)

        wanted = max(plan.instances, 1)
        found = share(wanted)
        if found < self.within:
            while wanted < plan.maximum and found < self.within:
                wanted += 1
                found = share(wanted)
            return wanted, found
        # If fewer keep the targets, more do: find the fewest by bisection.
        low = max(1, plan.minimum)
        while low < wanted:
            middle = (low + wanted) // 2
            if (of_fewer := share(middle)) >= self.within:
                wanted, found = middle, of_fewer
            else:
                low = middle + 1
        return wanted, found

    def _share(
        self,
        places: Sequence[EnginePlace],
        facts: Facts,
        plan: StrategyPlan,
        kind: EngineKind,
        rates: tuple[float, ...],
    ) -> float:
        """The share within the targets on `places`, while the rate goes from the first of `rates`
        to the second during a cold start. Fewer than now must keep them from now on."""
        instances, ramp_s = len(places), plan.cold_start_s
        from_now = instances < plan.instances
        if from_now:
            rates = tuple(TUNING.spare * rate for rate in rates)
        known = self._recall(instances, max(rates), facts, from_now)
        if known is not None:
            return self.within if known else 0.0
        coming = self._coming(rates[0], rates[1], ramp_s, kind.config.max_model_len)
        begins_s = [0.0, ramp_s] if from_now else [ramp_s + TUNING.catch_up_s]
        share = share_within(places, kind, coming, self._slo, begins_s, self.within)
        keeps = share >= self.within
        self._found.append(
            _Found(facts.now_s, instances, max(rates), facts.requests, from_now, keeps)
        )
        return share

    def _coming(self, rate: float, later: float, ramp_s: float, longest: int) -> list[Coming]:
        """Sampled requests up to the window's end. The seed is fixed, so that chance does not
        affect comparisons between numbers of instances or moments."""
        draws = np.random.default_rng(0)
        until_s = ramp_s + TUNING.window_s
        total = (rate + later) / 2 * ramp_s + later * TUNING.window_s
        if total <= 0:
            return []
        count = max(1, round(total))
        dispersion = self.forecast.dispersion()
        gaps = draws.gamma(1.0 / dispersion, dispersion, count + 1)
        shares = np.cumsum(gaps)[:-1] / gaps.sum()
        grid = np.linspace(0.0, until_s, 256)
        ramped = np.minimum(grid, ramp_s)
        slope = (later - rate) / ramp_s if ramp_s > 0 else 0.0
        expected = rate * ramped + slope * ramped**2 / 2 + later * (grid - ramped)
        times = np.interp(shares, expected / expected[-1], grid)
        chosen = draws.permutation(count) % len(self._lengths)
        lengths = list(self._lengths)
        found = []
        for at_s, index in zip(times.tolist(), chosen.tolist(), strict=True):
            prompt, output = lengths[index]
            prompt = min(prompt, longest - 1)
            found.append(Coming(at_s, prompt, max(1, min(round(output), longest - prompt))))
        return found

    def _recall(self, instances: int, rate: float, facts: Facts, from_now: bool) -> bool | None:
        """Whether so many instances are known to keep the targets; None: not known.

        If rollouts contradict each other, the one that failed counts.
        """
        while self._found and facts.now_s - self._found[0].at_s > TUNING.fails_for_s:
            self._found.popleft()
        requests, since_s = facts.requests, facts.now_s - TUNING.keeps_for_s
        if any(
            not f.keeps
            and (f.from_now <= from_now and f.instances >= instances)
            and (f.rate <= rate and f.requests <= requests)
            for f in self._found
        ):
            return False
        kept = any(
            (f.keeps and f.at_s >= since_s)
            and (f.from_now >= from_now and f.instances <= instances)
            and (f.rate >= rate and f.requests >= requests)
            for f in self._found
        )
        return True if kept else None
