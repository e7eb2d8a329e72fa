"""Predicted latency: the least end-to-end latency that the twins foretell (Block's policy)."""

from collections.abc import Sequence
from typing import ClassVar

from foretell.model import RequestSpec
from foretell.policy.base import Candidate, Needs
from foretell.policy.scoring import pick_lowest_known

CALIBRATED_STEPS = 64
"""Engine steps a twin's step time must have learned from before it is compared with others."""


class PredictedLatencyPolicy:
    """Greedy for the new request; what it costs the others shows only in their later answers.

    A twin that has seen few steps of its engine still predicts from its prior. Beside one that
    has learned the truth, a prior that is too slow would never win, so never get traffic, so
    never learn. Where some twins are calibrated, those that are not count as not having answered.
    """

    name: ClassVar[str] = "predicted_latency"
    needs: ClassVar[Needs] = Needs.PREDICTION

    def choose(self, request: RequestSpec, candidates: Sequence[Candidate], draw: float) -> str:
        """The candidate with the least predicted e2e latency."""
        answers = [c.prediction for c in candidates if c.prediction is not None]
        most = max((answer.calibration_steps for answer in answers), default=0)
        enough = CALIBRATED_STEPS if most >= CALIBRATED_STEPS else 0

        def e2e_s(candidate: Candidate) -> float | None:
            answer = candidate.prediction
            return answer.e2e_s if answer and answer.calibration_steps >= enough else None

        return pick_lowest_known(candidates, e2e_s, draw)
