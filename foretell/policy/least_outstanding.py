"""Least outstanding: the fewest requests in progress, as this scheduler counts them."""

from typing import ClassVar

from foretell.policy.base import Candidate
from foretell.policy.scoring import ScoringPolicy


class LeastOutstandingPolicy(ScoringPolicy):
    """Needs no predictor; blind to what other schedulers send and to how long requests are."""

    name: ClassVar[str] = "least_outstanding"
    measure: ClassVar[str] = "requests in progress"

    def score(self, candidate: Candidate) -> float:
        """Outstanding requests."""
        return candidate.outstanding
