"""Predicted latency: the least end-to-end latency that the twins foretell (Block's policy)."""

from collections.abc import Sequence
from typing import ClassVar

from foretell.model import RequestSpec
from foretell.policy.base import Candidate, Needs
from foretell.policy.judgement import Judgement, JudgingPolicy, Memory
from foretell.policy.scoring import lowest_known
from foretell.policy.trust import trusted


class PredictedLatencyPolicy(JudgingPolicy):
    """Greedy for the new request; what it costs the others shows only in their later answers."""

    name: ClassVar[str] = "predicted_latency"
    needs: ClassVar[Needs] = Needs.PREDICTION
    measure: ClassVar[str] = "predicted end-to-end latency, in seconds"

    def judge(
        self, request: RequestSpec, candidates: Sequence[Candidate], memory: Memory
    ) -> Judgement:
        """By predicted e2e latency."""
        answers = map(trusted(candidates), candidates)
        return lowest_known(candidates, [a.e2e_s if a else None for a in answers])
