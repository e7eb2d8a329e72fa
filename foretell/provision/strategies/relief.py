"""Block's `relief`: one instance more when an actual latency reaches a threshold."""

from typing import ClassVar

from foretell.provision.base import Plan, Proposal
from foretell.provision.facts import Facts
from foretell.provision.threshold import Threshold


class Relief:
    """`Threshold` on the longest actual e2e latency (Block, section 6.5)."""

    name: ClassVar[str] = "relief"
    needs_snapshots: ClassVar[bool] = False

    def __init__(
        self,
        *,
        threshold_s: float = 70.0,
        pause_s: float = 10.0,
        calm_ratio: float = 0.0,
        calm_s: float = 300.0,
    ) -> None:
        self._rule = Threshold(threshold_s, pause_s, calm_ratio, calm_s)

    def propose(self, facts: Facts, plan: Plan) -> Proposal:
        return self._rule.propose(facts.worst_e2e_s, facts.now_s, plan)
