"""Block's `relief`: one instance more when an actual latency reaches a threshold."""

from typing import ClassVar

from foretell.provision.facts import Facts
from foretell.provision.threshold import Threshold


class Relief(Threshold):
    """`Threshold` on the longest actual e2e latency (Block, section 6.5)."""

    name: ClassVar[str] = "relief"

    def latency_s(self, facts: Facts) -> float:
        return facts.worst_e2e_s
