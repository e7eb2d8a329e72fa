"""Which predictions may be compared with each other."""

from collections.abc import Callable, Sequence
from math import inf, isfinite

from foretell.model import Prediction
from foretell.policy.base import Candidate

CALIBRATED_STEPS = 64
"""Engine steps a twin's step time must have learned from before it is compared with others."""
SLOW = 3.0
"""An idle engine that is believed to decode so many times as slowly as another is tried again."""


def trusted(candidates: Sequence[Candidate]) -> Callable[[Candidate], Prediction | None]:
    """A candidate's prediction; None where there is none, or none to be compared.

    A twin that has seen few steps of its engine still predicts from its prior. Beside one that
    has learned the truth, a prior that is too slow would never win, so never get traffic, so
    never learn. Where some twins are calibrated, those that are not count as not having answered.

    So does an idle engine that is believed to be far slower than others and has got nothing for a
    minute: it was slow, perhaps while its host had too much to do, and only steps can tell that it
    no longer is. One that still is costs a request a minute.
    """
    answers = [c.prediction for c in candidates if c.prediction is not None]
    most = max((answer.calibration_steps for answer in answers), default=0)
    enough = CALIBRATED_STEPS if most >= CALIBRATED_STEPS else 0
    least_s = min((answer.tpot_s for answer in answers if answer.tpot_s > 0), default=inf)

    def answer_of(candidate: Candidate) -> Prediction | None:
        answer = candidate.prediction
        if answer is None or answer.calibration_steps < enough:
            return None
        untried = not candidate.dispatched_last_minute and not answer.load.requests
        is_slow = isfinite(answer.tpot_s) and answer.tpot_s > SLOW * least_s
        return None if untried and is_slow else answer

    return answer_of
