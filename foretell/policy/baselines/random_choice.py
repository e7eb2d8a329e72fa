"""Random: a uniform choice. The baseline that needs to know nothing."""

from collections.abc import Sequence
from typing import ClassVar

from foretell.model import RequestSpec
from foretell.policy.base import Candidate, Needs
from foretell.policy.judgement import Judgement, JudgingPolicy, Memory
from foretell.policy.scoring import lowest


class RandomPolicy(JudgingPolicy):
    """Every candidate is equally likely, whatever its load."""

    name: ClassVar[str] = "random"
    needs: ClassVar[Needs] = Needs.NOTHING
    measure: ClassVar[str] = "nothing: a draw decides"

    def judge(
        self, request: RequestSpec, candidates: Sequence[Candidate], memory: Memory
    ) -> Judgement:
        """All are equal."""
        return lowest(candidates, lambda _: 0.0)
