"""Predicted latency: the least end-to-end latency that the twins foretell (Block's policy)."""

from collections.abc import Sequence
from typing import ClassVar

from foretell.model import RequestSpec
from foretell.policy.base import Candidate, Needs
from foretell.policy.scoring import pick_lowest_known
from foretell.policy.trust import trusted


class PredictedLatencyPolicy:
    """Greedy for the new request; what it costs the others shows only in their later answers."""

    name: ClassVar[str] = "predicted_latency"
    needs: ClassVar[Needs] = Needs.PREDICTION

    def choose(self, request: RequestSpec, candidates: Sequence[Candidate], draw: float) -> str:
        """The candidate with the least predicted e2e latency."""
        prediction_of = trusted(candidates)

        def e2e_s(candidate: Candidate) -> float | None:
            answer = prediction_of(candidate)
            return None if answer is None else answer.e2e_s

        return pick_lowest_known(candidates, e2e_s, draw)
