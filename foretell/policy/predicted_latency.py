"""Predicted latency: the least end-to-end latency that the twins foretell (Block's policy)."""

from collections.abc import Sequence
from typing import ClassVar

from foretell.model import RequestSpec
from foretell.policy.base import Candidate, Needs
from foretell.policy.scoring import pick_lowest_known


class PredictedLatencyPolicy:
    """Greedy for the new request; what it costs the others shows only in their later answers."""

    name: ClassVar[str] = "predicted_latency"
    needs: ClassVar[Needs] = Needs.PREDICTION

    def choose(self, request: RequestSpec, candidates: Sequence[Candidate], draw: float) -> str:
        """The candidate with the least predicted e2e latency."""
        return pick_lowest_known(candidates, predicted_e2e_s, draw)


def predicted_e2e_s(candidate: Candidate) -> float | None:
    """Seconds until the request would end there; None when nobody predicted it."""
    return None if candidate.prediction is None else candidate.prediction.e2e_s
