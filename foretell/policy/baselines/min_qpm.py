"""Min QPM: the fewest requests dispatched in the last minute (Block, section 6: "Min QPM")."""

from collections.abc import Sequence
from typing import ClassVar

from foretell.model import RequestSpec
from foretell.policy.base import Candidate, Needs
from foretell.policy.judgement import Judgement, JudgingPolicy, Memory
from foretell.policy.scoring import lowest


class MinQpmPolicy(JudgingPolicy):
    """Evens out the rate of requests, not the work in them."""

    name: ClassVar[str] = "min_qpm"
    needs: ClassVar[Needs] = Needs.NOTHING
    measure: ClassVar[str] = "requests sent there in the last minute"

    def judge(
        self, request: RequestSpec, candidates: Sequence[Candidate], memory: Memory
    ) -> Judgement:
        """By dispatches within the last 60 s."""
        return lowest(candidates, lambda c: c.dispatched_last_minute)
