"""Which predictions may be compared with each other."""

from collections.abc import Callable, Sequence
from math import inf, isfinite

from foretell.model import Prediction
from foretell.policy.base import Candidate

CALIBRATED_STEPS = 64
"""Engine steps from which a twin must have learned its step time to be compared with others."""
SLOW = 3.0
"""An idle engine with a predicted TPOT of more than this factor times the lowest is tried again."""


def trusted(candidates: Sequence[Candidate]) -> Callable[[Candidate], Prediction | None]:
    """Return a function that gives a candidate's prediction, or None if it has no trusted one.

    A twin that has seen few steps of its engine predicts from its prior. Compared with calibrated
    twins, a prior that is too slow would never win, so its engine would get no requests and the
    twin would never learn. If some twins are calibrated, predictions of the others are not trusted.

    Nor is the prediction for an idle engine that seems far slower than others and got no request
    for a minute. It may have been slow while its host was overloaded, and only new steps can show
    that it no longer is. If it still is slow, this costs one request a minute.
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
