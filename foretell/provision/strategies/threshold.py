"""One instance more whenever a latency reaches a threshold: the rules of the Block paper."""

from math import inf
from typing import ClassVar, Literal

from foretell.provision.base import Proposal, StrategyPlan
from foretell.provision.facts import Facts


class _Threshold:
    """Adds an instance when a latency reaches `threshold_s`, at most one in `pause_s`.

    The Block paper (section 6.5) adds instances and never takes one away. With `calm_ratio` above 0
    one is taken away when no latency has reached that ratio of the threshold for `calm_s`.
    """

    latency: ClassVar[Literal["worst_e2e_s", "worst_predicted_e2e_s"]]

    def __init__(
        self,
        *,
        threshold_s: float = 70.0,
        pause_s: float = 10.0,
        calm_ratio: float = 0.0,
        calm_s: float = 300.0,
    ) -> None:
        if threshold_s <= 0 or min(pause_s, calm_ratio, calm_s) < 0:
            raise ValueError("the threshold must be positive, pauses and ratio not negative")
        self._threshold_s = threshold_s
        self._pause_s = pause_s
        self._calm_below_s = calm_ratio * threshold_s
        self._calm_s = calm_s
        self._stepped_s = -inf
        self._loud_s = -inf  # when a latency last reached the lower bound
        self._wanted: int | None = None

    def propose(self, facts: Facts, plan: StrategyPlan) -> Proposal:
        latency_s, now_s = getattr(facts, self.latency), facts.now_s
        wanted = plan.instances if self._wanted is None else self._wanted
        if self._loud_s == -inf or latency_s >= self._calm_below_s:
            self._loud_s = now_s
        why = f"longest latency {latency_s:.1f} s, threshold {self._threshold_s:g} s"
        may_step = now_s - self._stepped_s >= self._pause_s
        if latency_s >= self._threshold_s and may_step:
            wanted, self._stepped_s = wanted + 1, now_s
        elif self._calm_below_s > 0 and now_s - self._loud_s >= self._calm_s:
            wanted, self._loud_s = wanted - 1, now_s
        self._wanted = min(max(wanted, plan.minimum), plan.maximum)
        return Proposal(self._wanted, why)


class Relief(_Threshold):
    """`relief`: on the longest actual e2e latency (Block, section 6.5)."""

    name: ClassVar[str] = "relief"
    latency = "worst_e2e_s"


class Preempt(_Threshold):
    """`preempt`: on the longest predicted e2e latency (Block, section 6.5)."""

    name: ClassVar[str] = "preempt"
    latency = "worst_predicted_e2e_s"
