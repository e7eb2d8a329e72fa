"""llm-d's saturation rules: KV cache in use and requests that queue."""

from collections import deque
from statistics import fmean
from typing import ClassVar

from foretell.provision.base import Proposal, StrategyPlan
from foretell.provision.facts import Facts, InstanceFacts, InstancePhase

WINDOW_S = 60.0
"""The peaks of an instance's KV cache use and queue over this time count."""


class Saturation:
    """An instance is saturated at `kv_used_ratio` or `waiting` requests in its queue. Adds one if
    the others' mean spare KV cache is below `kv_spare_ratio` or their mean spare queue below
    `waiting_spare`, but none while one is warming. Removes one if neither would hold without it.

    The rules and defaults are those of llm-d's workload-variant-autoscaler 0.7
    (`configmap-saturation-scaling.yaml`), for instances of one kind.
    """

    name: ClassVar[str] = "saturation"

    def __init__(
        self,
        *,
        kv_used_ratio: float = 0.8,
        waiting: float = 5.0,
        kv_spare_ratio: float = 0.1,
        waiting_spare: float = 3.0,
    ) -> None:
        self._kv_used_ratio, self._waiting = kv_used_ratio, waiting
        self._kv_spare_ratio, self._waiting_spare = kv_spare_ratio, waiting_spare
        self._seen: dict[str, deque[tuple[float, float, int]]] = {}

    def propose(self, facts: Facts, plan: StrategyPlan) -> Proposal:
        ready = facts.in_phase(InstancePhase.READY)
        peaks = self._peaks(ready, facts.now_s)
        if not peaks:
            return Proposal(plan.instances, "no instance is ready")
        calm = [(kv, w) for kv, w in peaks if kv < self._kv_used_ratio and w < self._waiting]
        why = f"{len(peaks) - len(calm)} of {len(peaks)} saturated"
        if plan.instances > len(ready):
            return Proposal(plan.instances, f"{why}; one is warming")
        if not calm or self._short(calm, 1.0):
            return Proposal(plan.instances + 1, f"{why}, too little spare on the others")
        fewer = len(calm) - 1
        if fewer and not self._short(calm, len(calm) / fewer):
            return Proposal(plan.instances - 1, f"{why}, enough spare without one")
        return Proposal(plan.instances, why)

    def _peaks(self, ready: list[InstanceFacts], now_s: float) -> list[tuple[float, float]]:
        """KV cache in use and requests waiting of each instance, the peaks of the window."""
        self._seen = {i.instance_id: self._seen.get(i.instance_id, deque()) for i in ready}
        for instance in ready:
            seen = self._seen[instance.instance_id]
            seen.append((now_s, instance.kv_used_ratio, instance.waiting))
            while seen[0][0] < now_s - WINDOW_S:
                seen.popleft()
        return [
            (max(kv for _, kv, _ in seen), max(waiting for _, _, waiting in seen))
            for seen in self._seen.values()
        ]

    def _short(self, calm: list[tuple[float, float]], grown: float) -> bool:
        """Whether too little would be spare if the load were `grown` times as large."""
        kv, waiting = (fmean(column) * grown for column in zip(*calm, strict=True))
        return (
            self._kv_used_ratio - kv < self._kv_spare_ratio
            or self._waiting - waiting < self._waiting_spare
        )
