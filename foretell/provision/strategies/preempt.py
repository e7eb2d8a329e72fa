"""Block's `preempt`: one instance more when a predicted latency reaches a threshold."""

from typing import ClassVar

from foretell.provision.facts import Facts
from foretell.provision.threshold import Threshold


class Preempt(Threshold):
    """`Threshold` on the longest predicted e2e latency (Block, section 6.5)."""

    name: ClassVar[str] = "preempt"

    def latency_s(self, facts: Facts) -> float:
        return facts.worst_predicted_e2e_s
