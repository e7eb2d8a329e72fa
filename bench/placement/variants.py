"""Placement policies to compare, and what the parts of one of them are worth."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from foretell.model import Prediction, RequestSpec
from foretell.policy import Candidate, Needs, Policy, make_policy
from foretell.policy.scoring import pick_lowest_known
from foretell.policy.total_delay import others_delay_s

Score = Callable[[Prediction], float | None]


class Scored:
    """The least of a score of the prediction."""

    name: ClassVar[str] = "scored"
    needs: ClassVar[Needs] = Needs.EXTERNALITY

    def __init__(self, score: Score) -> None:
        self._score = score

    def choose(self, request: RequestSpec, candidates: Sequence[Candidate], draw: float) -> str:
        """The candidate with the least; below 0 counts as 0."""

        def score(candidate: Candidate) -> float | None:
            value = None if candidate.prediction is None else self._score(candidate.prediction)
            return None if value is None else max(0.0, value)

        return pick_lowest_known(candidates, score, draw)


def _added_e2e_s(prediction: Prediction) -> float:
    return prediction.added_e2e_s or 0.0


_SCORES: dict[str, Score] = {
    "e2e + added e2e": lambda p: p.e2e_s + _added_e2e_s(p),
    "without impatience": lambda p: p.ttft_s + (others_delay_s(p) or 0.0),
    "e2e in place of TTFT": lambda p: p.e2e_s + p.ttft_s**2 + (others_delay_s(p) or 0.0),
    "TTFT alone": lambda p: p.ttft_s,
}

POLICIES = ("predicted_latency", "externality")
ABLATIONS = tuple(_SCORES)


def make(name: str) -> Policy:
    """A fresh policy, or variant of `externality`, of that name."""
    return Scored(_SCORES[name]) if name in _SCORES else make_policy(name)
