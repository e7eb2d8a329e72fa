"""Least outstanding: the fewest requests in progress, as this scheduler counts them."""

from collections.abc import Sequence
from typing import ClassVar

from foretell.model import RequestSpec
from foretell.policy.base import Candidate, Needs
from foretell.policy.judgement import Judgement, JudgingPolicy, Memory
from foretell.policy.scoring import lowest


class LeastOutstandingPolicy(JudgingPolicy):
    """Needs no predictor; blind to what other schedulers send and to how long requests are."""

    name: ClassVar[str] = "least_outstanding"
    needs: ClassVar[Needs] = Needs.NOTHING
    measure: ClassVar[str] = "requests in progress"

    def judge(
        self, request: RequestSpec, candidates: Sequence[Candidate], memory: Memory
    ) -> Judgement:
        """By outstanding requests."""
        return lowest(candidates, lambda c: c.outstanding)
