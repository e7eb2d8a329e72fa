"""Which predictions may be compared with each other."""

from collections.abc import Callable, Sequence

from foretell.model import Prediction
from foretell.policy.base import Candidate

CALIBRATED_STEPS = 64
"""Engine steps a twin's step time must have learned from before it is compared with others."""


def trusted(candidates: Sequence[Candidate]) -> Callable[[Candidate], Prediction | None]:
    """A candidate's prediction; None where there is none, or none to be compared.

    A twin that has seen few steps of its engine still predicts from its prior. Beside one that
    has learned the truth, a prior that is too slow would never win, so never get traffic, so
    never learn. Where some twins are calibrated, those that are not count as not having answered.
    """
    answers = [c.prediction for c in candidates if c.prediction is not None]
    most = max((answer.calibration_steps for answer in answers), default=0)
    enough = CALIBRATED_STEPS if most >= CALIBRATED_STEPS else 0

    def answer_of(candidate: Candidate) -> Prediction | None:
        answer = candidate.prediction
        return answer if answer and answer.calibration_steps >= enough else None

    return answer_of
