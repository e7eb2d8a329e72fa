"""Decides how many instances a cluster should have: facts in, a decision out.

A strategy proposes; everything that holds for all strategies is here. The provisioner service and
the simulator drive it alike: they carry out a decision and report its effects in the next facts.
"""

from collections import deque
from dataclasses import dataclass
from math import inf
from typing import Literal

from foretell.provision.base import Proposal, Strategy, StrategyPlan
from foretell.provision.config import TUNING, ProvisionConfig
from foretell.provision.facts import Facts, InstanceFacts, InstancePhase

Because = Literal[
    "strategy", "bounds", "held", "batches", "cool_down", "survivors", "stale", "manual", "stuck"
]
"""What decided. `strategy`: the proposal, unchanged. `bounds`: minimum or maximum. `held`: a
request waits, and 0 instances were proposed. `batches`: with fewer they would end late.
`cool_down`: more were wanted a short while ago. `survivors`: fewer instances could not hold the
requests in progress. `stale`: the numbers are too old. `manual`: a person set the number.
`stuck`: started instances did not get ready, so that new starts wait."""


@dataclass(frozen=True, slots=True)
class ProvisionDecision:
    """How many instances there should be, and what to do for it."""

    at_s: float
    desired: int
    because: Because
    why: str
    confidence: float | None
    age_s: float
    """Age of the oldest number that it is based on."""
    start: int = 0
    """Instances to start."""
    take_back: tuple[str, ...] = ()
    """Draining instances that shall get requests again. They serve at once and need no start."""
    drain: tuple[str, ...] = ()
    """Ready instances that get no more requests and are stopped once they are empty."""
    stop: tuple[str, ...] = ()
    """Warming instances to stop: they are not needed any more, or never got ready."""
    forecast: float | None = None
    """Requests per second that the strategy expects after `cold_start_s`, whatever decided."""
    cold_start_s: float = 0.0
    """Seconds that a cold start is assumed to take."""
    within: float | None = None
    """The ratio of requests within their targets that the strategy expects of its proposal."""


class Provisioner:
    """Deterministic: equal facts in equal order give equal decisions."""

    def __init__(self, strategy: Strategy, config: ProvisionConfig) -> None:
        self.strategy = strategy
        self.config = config
        self.given_up_total = 0
        """Instances that never got ready."""
        self._cold_starts_s: deque[float] = deque(maxlen=TUNING.cold_starts)
        self._wanted: deque[tuple[float, int]] = deque()  # proposals of the cool-down
        self._began_s: dict[str, float] = {}  # when warming instances were started
        self._asked_for: int | None = None  # by the latest decision
        self._own = range(0)  # numbers that its order may lead to, even if it fails
        self._manual: tuple[float, int] | None = None  # until when, and how many
        self._failed_starts = 0  # in a row
        self._start_again_s = -inf

    @property
    def cold_start_s(self) -> float:
        """The nearest-rank P90 of the latest cold starts; before the first, the configured time."""
        if not self._cold_starts_s:
            return self.config.cold_start_s
        ordered = sorted(self._cold_starts_s)
        return ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]

    def decide(self, facts: Facts) -> ProvisionDecision:
        """Decide what to do now."""
        self._note_starts(facts)
        given_up = self._give_up(facts)
        coming = [i for i in facts.in_phase(InstancePhase.WARMING) if i.instance_id not in given_up]
        ready = facts.in_phase(InstancePhase.READY)
        here = len(coming) + len(ready)
        plan = StrategyPlan(here, self.config.minimum, self.config.maximum, self.cold_start_s)
        # The strategy gets all facts, so that its history has no gaps.
        proposal = self.strategy.propose(facts, plan)
        self._note_manual_change(facts)
        desired, because, why = self._desired(facts, plan, proposal)
        missing = max(0, desired - here)
        back = _most_missed(facts.in_phase(InstancePhase.DRAINING), missing)
        start = missing - len(back)
        if start and facts.now_s < self._start_again_s:
            start, because = 0, "stuck"
            why = f"{self._failed_starts} starts in a row failed"
        stop, drain = _least_missed(coming, ready, max(0, here - desired))
        self._note_order(facts, desired, len(given_up))
        return ProvisionDecision(
            facts.now_s,
            desired,
            because,
            why,
            proposal.confidence if because == "strategy" else None,
            facts.age_s,
            start,
            tuple(back),
            tuple(drain),
            (*given_up, *stop),
            proposal.arrivals_per_s,
            plan.cold_start_s,
            proposal.within if because == "strategy" else None,
        )

    def _desired(
        self, facts: Facts, plan: StrategyPlan, proposal: Proposal
    ) -> tuple[int, Because, str]:
        if facts.age_s > self.config.stale_s:
            held = plan.instances if self._asked_for is None else self._asked_for
            known = facts.age_s < inf
            why = f"the numbers are {facts.age_s:.0f} s old" if known else "numbers are missing"
            return held, "stale", why
        if self._manual is not None:
            until_s, instances = self._manual
            return instances, "manual", f"set by a person, left alone until {until_s:.0f}"
        wanted, why = proposal.instances, proposal.why
        because: Because = "strategy"
        if facts.held and wanted == 0:
            wanted, because = 1, "held"
            why = f"{facts.held} requests wait for an instance"
        if (floor := facts.batches.floor(plan.cold_start_s)) > wanted:
            wanted, because = floor, "batches"
            why = f"{why}; {floor} for batches to end in time"
        if (
            not self._wanted and self.config.cool_down_s > 0
        ):  # without earlier proposals, assume that the present number was needed
            self._wanted.append((facts.now_s, plan.instances))
        self._wanted.append((facts.now_s, wanted))
        while self._wanted[0][0] < facts.now_s - self.config.cool_down_s:
            self._wanted.popleft()
        most = max(count for _, count in self._wanted)
        bounded = min(max(wanted, plan.minimum), plan.maximum)
        if bounded != wanted:
            because, why = "bounds", f"{why}; bounds {plan.minimum} to {plan.maximum}"
        if bounded >= plan.instances:
            return bounded, because, why
        cooled = min(max(bounded, min(most, plan.instances)), plan.maximum)
        if cooled > bounded:
            bounded, because = cooled, "cool_down"
            why = f"{why}; {most} wanted within {self.config.cool_down_s:.0f} s"
        needed = min(survivors_needed(facts), plan.instances, plan.maximum)
        if needed > bounded:
            return needed, "survivors", f"{why}; {needed} hold what is in progress"
        return bounded, because, why

    def _note_starts(self, facts: Facts) -> None:
        """Learn the cold starts of instances that have become ready."""
        warming = {i.instance_id: i.since_s for i in facts.in_phase(InstancePhase.WARMING)}
        for instance in facts.in_phase(InstancePhase.READY):
            began_s = self._began_s.get(instance.instance_id)
            if began_s is not None:
                self._cold_starts_s.append(instance.since_s - began_s)
                self._failed_starts, self._start_again_s = 0, -inf
        self._began_s = warming

    def _give_up(self, facts: Facts) -> tuple[str, ...]:
        """Warming instances past `give_up_s`. Each time in a row doubles the pause of starts."""
        late = tuple(
            i.instance_id
            for i in facts.in_phase(InstancePhase.WARMING)
            if facts.now_s - i.since_s > self.config.give_up_s
        )
        if late:
            self.given_up_total += len(late)
            pause_s = self.cold_start_s * 2 ** min(self._failed_starts, 6)
            self._failed_starts += 1
            self._start_again_s = facts.now_s + pause_s
        return late

    def _note_manual_change(self, facts: Facts) -> None:
        """Notice that a person has set a number that no order of this core can have led to."""
        if self._manual is not None and facts.now_s >= self._manual[0]:
            self._manual = None
        asked = facts.asked_for
        if asked is not None and self._asked_for is not None and asked not in self._own:
            self._manual = facts.now_s + self.config.respect_s, asked

    def _note_order(self, facts: Facts, desired: int, given_up: int) -> None:
        """Remember the numbers that this order may lead to: it may fail or take a while, but
        instances that were given up are stopped at once."""
        self._asked_for = desired
        before = desired if facts.asked_for is None else facts.asked_for
        self._own = range(min(desired, before - given_up), max(desired, before) + 1)


def survivors_needed(facts: Facts) -> int:
    """The fewest ready instances that could hold all requests in progress at once."""
    ready = facts.in_phase(InstancePhase.READY)
    if not ready:
        return 0
    seats = max((i.max_num_seqs for i in ready), default=0)
    by_memory = sum(i.kv_used_ratio for i in ready) / TUNING.survivors_ratio
    by_seats = facts.requests / (TUNING.survivors_ratio * seats) if seats else 0.0
    return max(-int(-by_memory // 1), -int(-by_seats // 1))


def _most_missed(draining: list[InstanceFacts], more: int) -> list[str]:
    """The draining instances to take back: those with most requests, which would empty last."""
    return [i.instance_id for i in sorted(draining, key=lambda i: -i.requests)[:more]]


def _least_missed(
    coming: list[InstanceFacts], ready: list[InstanceFacts], fewer: int
) -> tuple[list[str], list[str]]:
    """Warming instances to stop, latest first, then ready ones to drain, fewest requests first."""
    newest = sorted(coming, key=lambda i: -i.since_s)[:fewer]
    idlest = sorted(ready, key=lambda i: i.requests)[: fewer - len(newest)]
    return [i.instance_id for i in newest], [i.instance_id for i in idlest]
