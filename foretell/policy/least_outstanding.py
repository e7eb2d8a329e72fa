"""Least outstanding: the instance with the fewest requests of this scheduler in progress."""

from typing import ClassVar

from foretell.policy.base import Candidate
from foretell.policy.scoring import ScoringPolicy


class LeastOutstandingPolicy(ScoringPolicy):
    """Needs no predictor, but ignores what other schedulers send and how long requests are."""

    name: ClassVar[str] = "least_outstanding"
    measure: ClassVar[str] = "requests in progress"

    def score(self, candidate: Candidate) -> float:
        """Return the number of outstanding requests."""
        return candidate.outstanding
